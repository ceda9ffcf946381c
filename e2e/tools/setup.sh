#!/usr/bin/env bash
# Installs what the tests need and is not there: Debian packages, a Go new enough to build the control plane, a Rust new
# enough for this crate. Does nothing, and asks for no rights, when all of it is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}
go_version=1.26.8
say() { printf '%s\n' "$*" >&2; }

# A command, and the package that has it.
needed='
cc:gcc
make:make
cmake:cmake
git:git
jq:jq
curl:curl
openssl:openssl
xz:xz-utils
zstd:zstd
sgdisk:gdisk
mkfs.ext4:e2fsprogs
parted:parted
mkfs.xfs:xfsprogs
mkfs.btrfs:btrfs-progs
mkfs.vfat:dosfstools
genisoimage:genisoimage
xorriso:xorriso
mksquashfs:squashfs-tools
sfdisk:fdisk
qemu-img:qemu-utils
nginx:nginx-light
docker-registry:docker-registry
skopeo:skopeo
htpasswd:apache2-utils
prometheus:prometheus
promtool:prometheus
strace:strace
faketime:faketime
ip:iproute2
ps:procps
setpriv:util-linux
shellcheck:shellcheck
buildah:buildah
crun:crun
'
# Some are in folders that only root has on its PATH.
have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

packages=()
for pair in $needed; do
  have "${pair%%:*}" || packages+=("${pair#*:}")
done
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)

older() { # whether version $1 is older than $2
  [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$1" ]
}
go_is_new() { # whether the go at $1 is new enough
  local version
  version=$(GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/.* go\([0-9.]*\).*/\1/p')
  [ -n "$version" ] && ! older "$version" "${go_version%.*}"
}
want_go=true
for go in "$(command -v go || true)" "$cache/go/bin/go"; do
  if [ -n "$go" ] && go_is_new "$go"; then want_go=false; fi
done
if $want_go && ! command -v go >/dev/null; then packages+=(golang-go); fi

if [ ${#packages[@]} -gt 0 ]; then
  say "installing: ${packages[*]}"
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  command -v apt-get >/dev/null || { say "this is not Debian: install these yourself"; exit 1; }
  # The tests start servers by themselves, on ports of their own: the packages must not start theirs.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee $policy >/dev/null
    "${root[@]}" chmod +x $policy
    trap '"${root[@]}" rm -f $policy' EXIT
  fi
  "${root[@]}" apt-get update -q >&2
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >&2
fi

if $want_go; then
  # Any older Go can fetch a newer one as a module; the module has lost which files are programs.
  say "fetching Go $go_version"
  machine=$(go env GOOS)-$(go env GOARCH)
  from=$(GOFLAGS='' go mod download -json "golang.org/toolchain@v0.0.1-go$go_version.$machine" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  [ -n "$from" ] || { say "Go $go_version could not be fetched"; exit 1; }
  mkdir -p "$cache"
  rm -rf "$cache/go.tmp" "$cache/go"
  cp -r "$from" "$cache/go.tmp"
  chmod -R u+w "$cache/go.tmp"
  chmod +x "$cache"/go.tmp/bin/* "$cache"/go.tmp/pkg/tool/*/*
  mv "$cache/go.tmp" "$cache/go"
fi

rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
rust_is_new() {
  local version
  version=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
  [ -n "$version" ] && ! older "$version" "$rust_version" && command -v cargo >/dev/null
}
if ! rust_is_new; then
  command -v rustup >/dev/null || { say "Rust $rust_version or newer is missing, and rustup to install it: see https://rustup.rs"; exit 1; }
  say "installing Rust (stable)"
  rustup toolchain install stable --profile minimal --component clippy --component rustfmt >&2
  rust_is_new || { say "rustc is still older than $rust_version: is another toolchain chosen for this folder (rustup show)?"; exit 1; }
fi
