#!/usr/bin/env bash
# Runs each fuzz target for SECONDS_EACH seconds (60). A plain mutational loop on a stable toolchain: coverage-guided
# fuzzers need a nightly compiler. `make fuzz` calls it.
set -euo pipefail
cd "$(dirname "$0")/../.."
for target in e2e/fuzz/*.rs; do
  name=fuzz_$(basename "$target" .rs)
  echo "$name for ${SECONDS_EACH:-60} s"
  FUZZ_SECONDS=${SECONDS_EACH:-60} cargo run --quiet --release --example "$name"
done
