# shellcheck shell=bash
# Sourced, with pipefail set: runs the steps of a script one after the other, goes on after a failure, and tells each one's result and seconds.
#
#   step NAME COMMAND…     runs it; its output is shown and kept in $logs
#   finish                 prints the table; fails when a step failed
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
table=$logs/table
failed_steps=0
: >"$table"

step() {
  local name=$1 start=$SECONDS log="$logs/${1//[^a-zA-Z0-9]/-}.log" result=ok
  shift
  printf '\n==> %s\n' "$name"
  if ! "$@" 2>&1 | tee "$log"; then
    result=FAILED
    failed_steps=$((failed_steps + 1))
  fi
  printf '%s\t%s\t%s\n' "$name" "$((SECONDS - start))" "$result" >>"$table"
}

finish() {
  printf '\n%-44s %8s  %s\n' step seconds result
  while IFS=$'\t' read -r name seconds result; do
    printf '%-44s %8s  %s\n' "$name" "$seconds" "$result"
  done <"$table"
  printf '%-44s %8s\n' total "$SECONDS"
  [ "$failed_steps" = 0 ]
}
