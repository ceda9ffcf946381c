#!/usr/bin/env bash
# Runs all tests and prints each step's seconds and how many tests passed, failed and were skipped. `make test` calls it.
#
#   e2e/tools/test.sh                everything
#   e2e/tools/test.sh NAME…          only these end-to-end tests ([[test]] in Cargo.toml), or `unit`
#
# Most of a test's time is waiting, and each test binary has its own control plane, ports and folders: so some run at once,
# E2E_JOBS of them (else one more than there are cores, at most 4; on a cluster of yours, E2E_KUBECONFIG, one). [package.metadata.e2e] in Cargo.toml says which run alone.
#
# Where the real schemas of other projects are at hand (../shared/crds, or the folder E2E_CRDS names), the tests that use
# such schemas run on the trimmed and on the real ones; E2E_SCHEMAS=real or trimmed chooses one.
# shellcheck disable=SC2154 # steps.sh sets logs and failed_steps
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=e2e/tools/steps.sh
. e2e/tools/steps.sh

chosen=" $* "
wanted() { [ "$chosen" = '  ' ] || [[ $chosen == *" $1 "* ]]; }

skips=$logs/skips
: >"$skips"
export E2E_SKIPS=$skips
# What the daemons of the whole suite asked of API servers, for the last test (`rights`).
if [ "$chosen" = '  ' ]; then
  export E2E_AUDIT=$logs/audit
  mkdir -p "$E2E_AUDIT"
fi

if [ -z "${E2E_SCHEMAS:-}" ] && [ -d "${E2E_CRDS:-../shared/crds}" ]; then schemas='trimmed real'; else schemas=${E2E_SCHEMAS:-trimmed}; fi

# Whether the sources of an end-to-end test ask which schemas to use.
asks_for_schemas() {
  local source
  source=$(jq -r --arg name "$1" '.packages[0].targets[] | select(.name == $name and .kind == ["test"]) | .src_path' <<<"$metadata")
  grep -rqs 'Flavor::chosen' "$source" "${source%.rs}" "${source%_test.rs}_tests" "$(dirname "$source")/$1"
}

places=${E2E_JOBS:-$(($(nproc) + 1))}
[[ $places =~ ^[1-9][0-9]*$ ]] || { echo "E2E_JOBS is '$places': expected a number of test binaries" >&2; exit 64; }
[ -n "${E2E_JOBS:-}" ] || [ "$places" -le 4 ] || places=4
# A whole cluster is one for all of them: what one installs there, another must not meet.
[ -z "${E2E_KUBECONFIG:-}" ] || places=1
# One that is asked for by itself is watched as it runs.
[ $# -ne 1 ] || places=1

metadata=$(cargo metadata --no-deps --format-version 1) || exit 1
tests=$(jq -r '.packages[0].targets[] | select(.kind == ["test"]) | .name' <<<"$metadata")
for name in "$@"; do
  [ "$name" = unit ] || grep -qx "$name" <<<"$tests" || { echo "there is no test '$name'; there are: unit ${tests//$'\n'/ }" >&2; exit 64; }
done

# What [package.metadata.e2e] says of a test: whether a list has it, or the value a table gives it.
listed() { jq -e --arg list "$1" --arg name "$2" '.packages[0].metadata.e2e[$list] | index($name)' <<<"$metadata" >/dev/null; }
only() { jq -r --arg name "$1" '.packages[0].metadata.e2e["on-real"][$name] // ""' <<<"$metadata"; }

# The test's lines are left out, and cargo's; what else a test says past the capture is kept.
brief() { grep -vE '^(test .* \.\.\. (ok|ignored.*)|running [0-9]+ tests?|)$|^ +(Finished|Running|Blocking) ' || true; }

run() { # how (step or beside), test
  local how=$1 name=$2 flavor filter
  wanted "$name" || return 0
  if ! asks_for_schemas "$name"; then
    "$how" "e2e $name" timeout "${foreground[@]}" 30m cargo test --test "$name"
    return
  fi
  for flavor in $schemas; do
    filter=()
    if [ "$schemas" = 'trimmed real' ]; then
      if [ "$flavor" = trimmed ]; then listed only-real "$name" && continue; else read -ra filter < <(only "$name"); fi
    fi
    "$how" "e2e $name ($flavor schemas)" env E2E_SCHEMAS="$flavor" timeout "${foreground[@]}" 30m cargo test --test "$name" -- "${filter[@]}"
  done
}

# Only what is asked for: each test binary takes some seconds to build.
targets=(--bins)
wanted unit && targets+=(--lib)
for name in $tests; do wanted "$name" && targets+=(--test "$name"); done
step 'build' cargo test --no-run "${targets[@]}"
if [ "$failed_steps" = 0 ]; then
  wanted unit && step 'unit tests' cargo test --lib --bins
  wanted unit && step 'documentation tests' cargo test --doc
  foreground=()
  if [ "$places" -gt 1 ]; then
    # The longest first, so that none of them is left to itself in the end.
    longest=$(jq -r '.packages[0].metadata.e2e.longest[]' <<<"$metadata")
    for name in $(awk '!known[$0]++' <<<"$longest"$'\n'"$tests"); do listed alone "$name" || run beside "$name"; done
    together
  fi
  # As a step, Ctrl-C reaches the test itself.
  foreground=(--foreground)
  for name in $tests; do
    if [ "$places" = 1 ] || listed alone "$name"; then run step "$name"; fi
  done
fi

finish
status=$?
# Whoever calls this (.ci/run) keeps the same lines in the log of its own step, `make-test.log`.
read -r passed failed ignored < <(find "$logs" -maxdepth 1 -name '*.log' ! -name 'make-*' -exec cat {} + | awk '
  /^test result:/ { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i; if ($(i+1) ~ /^ignored/) g += $i } }
  END { print p + 0, f + 0, g + 0 }')
skipped=$(wc -l <"$skips")
if [ -s "$skips" ]; then
  printf '\nskipped here:\n'
  sort "$skips" | uniq -c | sed 's/^/  /'
fi
# shellcheck disable=SC2016
[ "$ignored" = 0 ] || printf '\n%s longer tests were left for `make soak`\n' "$ignored"
printf '\n%s passed, %s failed, %s skipped in %s s\n' "$((passed - skipped))" "$failed" "$((skipped + ignored))" "$SECONDS"
exit "$status"
