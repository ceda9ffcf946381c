#!/usr/bin/env bash
# Builds the container image from nothing but this repository, and starts what it built. `make image` calls it.
#
#   e2e/tools/image.sh            the release image, as an OCI layout in target/image/oci
#   PROFILE=image-ci …            the same way with little optimisation, which CI has time for
#   REPRODUCE=1 …                 builds the binary a second time, from a copy elsewhere, and compares
#
# The binary is static (glibc, +crt-static), so the image has no base. What starts it is crun or runc where this machine lets them make
# namespaces, else chroot into the unpacked image.
set -euo pipefail
cd "$(dirname "$0")/../.."
repository=$PWD
profile=${PROFILE:-release}
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}
out=${IMAGE_OUT:-$repository/target/image}
target=$(rustc -vV | sed -n 's/^host: //p')
cyclonedx_version=0.5.7
# Every file's time is that of the commit, so that it is not a matter of when.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
say() { printf '==> %s\n' "$*" >&2; }
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT

# build SOURCES TARGET_DIR: paths are mapped away, in Rust and in the C of its dependencies, so that a clone's place leaves no trace.
build() {
  local sources=$1 dir=$2 home=${CARGO_HOME:-$HOME/.cargo}
  local map="-ffile-prefix-map=$home=/cargo -ffile-prefix-map=$dir=/target -ffile-prefix-map=$sources=/golden-catalog"
  (cd "$sources" && env -u RUSTFLAGS CARGO_TARGET_DIR="$dir" CFLAGS="$map" CXXFLAGS="$map" \
    CARGO_ENCODED_RUSTFLAGS="$(printf '%s\x1f' -Ctarget-feature=+crt-static "--remap-path-prefix=$home=/cargo" "--remap-path-prefix=$dir=/target")--remap-path-prefix=$sources=/golden-catalog" \
    cargo build --quiet --locked --bin golden-catalog --profile "$profile" --target "$target")
  printf '%s\n' "$dir/$target/$profile/golden-catalog"
}

say "building the static binary (profile $profile)"
binary=$(build "$repository" "$cache/image-target" | tail -n1)
if ldd "$binary" 2>/dev/null | grep -q '=>'; then say "$binary is not static"; exit 1; fi
say "$(stat -c %s "$binary") bytes, sha256 $(sha256sum "$binary" | cut -d' ' -f1)"

if [ -n "${REPRODUCE:-}" ]; then
  say 'building it again, elsewhere'
  git clone --quiet --shared "$repository" "$work/elsewhere"
  again=$(build "$work/elsewhere" "$work/elsewhere-target" | tail -n1)
  cmp "$binary" "$again" || { say 'the two binaries differ'; exit 1; }
  say 'the same to the byte'
fi

say 'listing what it is made of'
if [ "$("$cache/cargo-tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null)" != "cargo-cyclonedx-cyclonedx $cyclonedx_version" ]; then
  env -u CARGO_TARGET_DIR cargo install --quiet cargo-cyclonedx --version "$cyclonedx_version" --locked --root "$cache/cargo-tools"
fi
PATH="$cache/cargo-tools/bin:$PATH" cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$target" --all --override-filename golden-catalog.cdx
mv golden-catalog.cdx.json "$out/sbom.cdx.json"

root=$work/context/root
install -D -m 0755 "$binary" "$root/golden-catalog"
install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
install -D -m 0644 "$out/sbom.cdx.json" "$root/usr/share/golden-catalog/sbom.cdx.json"
install -D -m 0644 LICENSE "$root/usr/share/golden-catalog/LICENSE"

# assemble NAME: one image from the tree, in a storage of its own, and its digest.
assemble() {
  local storage=(--root "$work/$1/storage" --runroot "$work/$1/run" --storage-driver vfs)
  buildah "${storage[@]}" build --quiet --isolation chroot --network none --pull-never --format oci --timestamp "$SOURCE_DATE_EPOCH" \
    --tag golden-catalog:"$1" --file e2e/tools/Containerfile "$work/context" >/dev/null
  buildah "${storage[@]}" push --quiet golden-catalog:"$1" "oci:$work/$1/oci:latest" >/dev/null
  jq -r '.manifests[0].digest' "$work/$1/oci/index.json"
}
say 'assembling it, twice'
digest=$(assemble one)
# Other times on the files, another storage: nothing of that may be in the image.
find "$work/context" -exec touch -d @1 {} +
second=$(assemble two)
[ "$digest" = "$second" ] || { say "two builds of one tree differ: $digest, $second"; exit 1; }
mv "$work/one/oci" "$out/oci"
printf '%s\n' "$digest" >"$out/digest"
say "$digest"

say 'unpacking it'
blob() { printf '%s\n' "$out/oci/blobs/${1/://}"; }
manifest=$(blob "$digest")
config=$(blob "$(jq -r .config.digest "$manifest")")
mkdir "$work/rootfs"
jq -r '.layers[].digest' "$manifest" | while read -r layer; do tar -xzf "$(blob "$layer")" -C "$work/rootfs"; done
user=$(jq -r .config.User "$config")
entrypoint=$(jq -r '.config.Entrypoint[0]' "$config")
[ "$user" = 65532:65532 ] || { say "it would run as $user"; exit 1; }
[ -x "$work/rootfs$entrypoint" ] || { say "there is no $entrypoint in it"; exit 1; }
[ "$(find "$work/rootfs" -type f -perm /111)" = "$work/rootfs/golden-catalog" ] || { say 'more than one program is in it'; exit 1; }

# How it can be started here.
bundle() { # ARGUMENTS…: an OCI bundle of the image with the chart's restrictions
  mkdir -p "$work/bundle"
  ln -sfn "$work/rootfs" "$work/bundle/rootfs"
  "$runtime" spec --bundle "$work/bundle" 2>/dev/null || (cd "$work/bundle" && rm -f config.json && "$runtime" spec)
  jq --args '.process.args = $ARGS.positional | .process.terminal = false | .process.user = {uid: 65532, gid: 65532}
    | .process.capabilities = {} | .process.noNewPrivileges = true | .root = {path: $root, readonly: true}' \
    --arg root "$work/rootfs" "$work/bundle/config.json" -- "$entrypoint" "$@" >"$work/bundle/config.new"
  mv "$work/bundle/config.new" "$work/bundle/config.json"
}
runtime=
start() { # ARGUMENTS…: what the image says to them
  if [ -n "$runtime" ]; then
    rm -f "$work/bundle/config.json"
    bundle "$@"
    "$runtime" --root "$work/state" run --bundle "$work/bundle" "golden-catalog-$$-$RANDOM"
  else
    chroot --userspec="$user" "$work/rootfs" "$entrypoint" "$@"
  fi
}
way='chroot'
for candidate in crun runc; do
  command -v $candidate >/dev/null || continue
  runtime=$candidate
  if start --version >"$work/said" 2>&1; then way=$candidate; break; fi
  say "$candidate cannot start containers here: $(tail -n1 "$work/said")"
  runtime=
done
say "starting it by $way"
start --version >&2
start crds | cmp - crds/cozystack.io_goldenimages.yaml || { say 'the image has another CRD than the repository'; exit 1; }
say "the image starts and has this repository's CRD"
