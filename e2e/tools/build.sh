#!/usr/bin/env bash
# Builds the real control plane (etcd, kube-apiserver, kube-controller-manager, kubectl) and helm from the Go modules
# beside this script, once, into a cache outside the work tree, and prints the folder that holds them (last line).
#
#   K8S=1.35.2 e2e/tools/build.sh      another Kubernetes version (its modules are resolved on the fly)
#
# The cache is $GOLDEN_CATALOG_CACHE or ~/.cache/golden-catalog; it is keyed by the content of the go.mod and go.sum
# used, so a clean clone on the same machine builds nothing again. A cold build takes over ten minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}
k8s=${K8S:-}
default=$(awk '$1=="k8s.io/kubernetes"{print substr($2,2)}' "$here/kubernetes/go.mod")
[ -n "$k8s" ] || k8s=$default
say() { printf '%s\n' "$*" >&2; }
command -v go >/dev/null || { say "go is missing: run 'make setup' (or install Go 1.26 or newer)"; exit 1; }

mkdir -p "$cache/tools"
exec 9>"$cache/tools/.lock"
flock -n 9 || { say "another build of the tools is running; waiting for it"; flock 9; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cp -r "$here/kubernetes" "$work/kubernetes"
if [ "$k8s" != "$default" ]; then
  say "resolving the modules of Kubernetes $k8s"
  minor=$(echo "$k8s" | cut -d. -f2); patch=$(echo "$k8s" | cut -d. -f3)
  old_minor=$(echo "$default" | cut -d. -f2); old_patch=$(echo "$default" | cut -d. -f3)
  ( cd "$work/kubernetes"
    # Drop the indirect requirements: they belong to the default version.
    sed -i -e '/\/\/ indirect/d' -e "s/v1\.$old_minor\.$old_patch/v1.$minor.$patch/" -e "s/v0\.$old_minor\.$old_patch/v0.$minor.$patch/" -e 's/^go .*/go 1.26.0/' go.mod
    rm -f go.sum; go mod tidy >&2 )
fi

build() { # module dir, output dir, name, package, ldflags
  local dir=$1 out=$2 name=$3 pkg=$4 flags=$5 start=$SECONDS
  [ -x "$out/$name" ] && return 0
  say "building $name (once; kept in $out)"
  ( cd "$dir" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $flags" -o "$out/.$name.tmp" "$pkg" )
  mv "$out/.$name.tmp" "$out/$name"
  say "  $name built in $((SECONDS - start)) s"
}
key() { cat "$1/go.mod" "$1/go.sum" "$here/build.sh" | sha256sum | cut -c1-16; }

k_out=$cache/tools/kubernetes-$k8s-$(key "$work/kubernetes"); h_out=$cache/tools/helm-$(key "$here/helm")
mkdir -p "$k_out" "$h_out"
v=k8s.io/component-base/version
flags="-X $v.gitVersion=v$k8s -X $v.gitMajor=1 -X $v.gitMinor=$(echo "$k8s" | cut -d. -f2)"
build "$work/kubernetes" "$k_out" etcd go.etcd.io/etcd/server/v3 ""
build "$work/kubernetes" "$k_out" kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "$flags"
build "$work/kubernetes" "$k_out" kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager "$flags"
build "$work/kubernetes" "$k_out" kubectl k8s.io/kubernetes/cmd/kubectl "$flags"
build "$here/helm" "$h_out" helm helm.sh/helm/v4/cmd/helm ""
ln -sfn "$h_out/helm" "$k_out/helm"
printf '%s\n' "$k_out"
