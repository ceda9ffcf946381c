#!/usr/bin/env bash
# Runs each fuzz target for SECONDS_EACH seconds (60). A plain mutational loop on a stable toolchain: coverage-guided
# fuzzers need a nightly compiler. `make fuzz` calls it. PROFILE=dev uses what the tests have built already, for fewer cases.
set -euo pipefail
cd "$(dirname "$0")/../.."
for target in e2e/fuzz/*.rs; do
  name=fuzz_$(basename "$target" .rs)
  echo "$name for ${SECONDS_EACH:-60} s"
  SECONDS_EACH=${SECONDS_EACH:-60} cargo run --quiet --profile "${PROFILE:-fuzz}" --example "$name"
done
