#!/usr/bin/env bash
# Checks form, habits, licences and generated files, and prints each step's seconds. `make lint` calls it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=e2e/tools/steps.sh
. e2e/tools/steps.sh
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}
deny_version=0.20.2

deny() {
  local bin=$cache/cargo-tools/bin/cargo-deny
  if [ "$("$bin" --version 2>/dev/null)" != "cargo-deny $deny_version" ]; then
    echo "building cargo-deny $deny_version (once; kept in $cache/cargo-tools)"
    # Its own target folder: in ours it would share nothing and mix with everything.
    env -u CARGO_TARGET_DIR cargo install cargo-deny --version "$deny_version" --locked --root "$cache/cargo-tools" || return 1
  fi
  # The list of advisories is not asked: a build must not fail for what was published elsewhere this morning.
  "$bin" check bans licenses sources
}

charts() {
  local helm chart values
  helm=$(e2e/tools/build.sh --where)/helm || return 1
  for chart in helm/*/Chart.yaml; do
    chart=${chart%/Chart.yaml}
    "$helm" lint --strict "$chart" || return 1
    grep -q '^type: library' "$chart/Chart.yaml" && continue
    for values in "$chart/values.yaml" "$chart"/ci/*-values.yaml; do
      [ -e "$values" ] || continue
      "$helm" template lint "$chart" --namespace cozy-kubernetes-worker-image --values "$values" >/dev/null || return 1
      echo "$chart renders with $values"
    done
  done
}

scripts() {
  command -v shellcheck >/dev/null || { echo 'shellcheck is not installed: left out'; return 0; }
  git ls-files -z -- '*.sh' .ci/run | xargs -0 shellcheck --shell=bash --severity=warning
}

step 'format' cargo fmt --all --check
# What is shipped is held to more, by the first lines of src/lib.rs and src/main.rs.
step 'clippy' cargo clippy --all-targets -- -D warnings
step 'dependencies (cargo-deny)' deny
step 'generated files' cargo test --test harness generated
step 'charts' charts
step 'shell scripts' scripts
finish
