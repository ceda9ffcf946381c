#!/usr/bin/env bash
# Builds the real control plane (etcd, kube-apiserver, kube-controller-manager, kubectl) and helm from the Go modules
# beside this script, once, into a cache outside the work tree, and prints the folder that holds them (last line).
#
#   e2e/tools/build.sh                 builds what is missing
#   e2e/tools/build.sh kubectl helm    only these, and none of the others
#   e2e/tools/build.sh --where         builds nothing; prints the folder
#   K8S=1.35.4 e2e/tools/build.sh      another Kubernetes version (its modules are resolved when it is built)
#
# The cache is $GOLDEN_CATALOG_CACHE or ~/.cache/golden-catalog. A folder in it is named by the version, the recipe below
# and the content of go.mod and go.sum, so a clean clone on the same machine builds nothing again. A cold build takes over
# ten minutes on two cores.
set -euo pipefail
# Count this up when the way of building changes (flags, packages), so that old results are not used.
recipe=1

here=$(cd "$(dirname "$0")" && pwd)
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}
default=$(awk '$1=="k8s.io/kubernetes"{print substr($2,2)}' "$here/kubernetes/go.mod")
k8s=${K8S:-$default}; k8s=${k8s#v}
say() { printf '%s\n' "$*" >&2; }
[[ $k8s =~ ^1\.[0-9]+\.[0-9]+$ ]] || { say "K8S is '$k8s': expected a version such as 1.34.4"; exit 64; }

key() { { cat "$here/$1/go.mod" "$here/$1/go.sum"; echo "recipe $recipe"; } | sha256sum | cut -c1-16; }
k_out=$cache/tools/kubernetes-$k8s-$(key kubernetes)
h_out=$cache/tools/helm-$(key helm)

if [ "${1:-}" = --where ]; then printf '%s\n' "$k_out"; exit; fi
names=("$@")
[ $# -gt 0 ] || names=(etcd kube-apiserver kube-controller-manager kubectl helm)
missing=''
for name in "${names[@]}"; do [ -x "$k_out/$name" ] || missing="$missing $name"; done
if [ -z "$missing" ]; then printf '%s\n' "$k_out"; exit; fi
command -v go >/dev/null || { say "go is missing: run 'make setup' (or install Go 1.26 or newer)"; exit 1; }

mkdir -p "$k_out" "$h_out"
exec 9>"$cache/tools/.lock"
flock -n 9 || { say "another build of the tools is running; waiting for it"; flock 9; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cp -r "$here/kubernetes" "$work/kubernetes"
if [ "$k8s" != "$default" ]; then
  say "resolving the modules of Kubernetes $k8s"
  ( cd "$work/kubernetes"
    # The other requirements and the list of staging modules belong to the default version.
    sed -i -e '/\/\/ indirect/{/k8s\.io\/kubernetes \|etcd\/server\/v3 /!d}' -e "s|k8s.io/kubernetes v[0-9.]*|k8s.io/kubernetes v$k8s|" \
      -e '/^replace (/,/^)/d' -e 's/^go .*/go 1.26.0/' go.mod
    rm -f go.sum
    theirs=$(go mod download -json "k8s.io/kubernetes@v$k8s" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
    [ -n "$theirs" ] || { say "there is no Kubernetes $k8s"; exit 64; }
    sed -n "s|^[[:space:]]*\(k8s.io/[a-z0-9.-]*\) => ./staging/.*|replace \1 => \1 v0.${k8s#1.}|p" "$theirs" >>go.mod
    go mod tidy >&2 )
fi

build() { # name, module dir, output dir, package, ldflags
  local name=$1 dir=$2 out=$3 pkg=$4 flags=$5 start=$SECONDS
  [[ " $missing " == *" $name "* ]] && [ ! -x "$out/$name" ] || return 0
  say "building $name (once; kept in $out)"
  ( cd "$dir" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $flags" -o "$out/.$name.tmp" "$pkg" )
  mv "$out/.$name.tmp" "$out/$name"
  say "  $name built in $((SECONDS - start)) s"
}

v=k8s.io/component-base/version
minor=${k8s#1.}; minor=${minor%%.*}
flags="-X $v.gitVersion=v$k8s -X $v.gitMajor=1 -X $v.gitMinor=$minor"
build etcd "$work/kubernetes" "$k_out" go.etcd.io/etcd/server/v3 ""
for name in kube-apiserver kube-controller-manager kubectl; do
  build $name "$work/kubernetes" "$k_out" k8s.io/kubernetes/cmd/$name "$flags"
done
build helm "$here/helm" "$h_out" helm.sh/helm/v4/cmd/helm ""
[ ! -x "$h_out/helm" ] || ln -sfn "../${h_out##*/}/helm" "$k_out/helm"
printf '%s\n' "$k_out"
