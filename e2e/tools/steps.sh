# shellcheck shell=bash
# Sourced, with pipefail set: runs the steps of a script, goes on after a failure, and tells each one's result and seconds.
#
#   step NAME COMMAND…     runs it; its output is shown and kept in $logs
#   beside NAME COMMAND…   starts it as soon as one of $places is free; its output is shown when it has ended: all of it after
#                          a failure, else what `brief` leaves of it
#   together               waits for all that `beside` started
#   finish                 prints the table; fails when a step failed
# E2E_LOGS names a folder of yours for them, which is kept.
if [ -n "${E2E_LOGS:-}" ]; then
  mkdir -p "$E2E_LOGS" || exit 1
  logs=$(cd "$E2E_LOGS" && pwd)
else
  logs=$(mktemp -d)
  trap 'rm -rf "$logs"' EXIT
fi
table=$logs/table
failed_steps=0
: >"$table"
places=1

log_of() { printf '%s' "$logs/${1//[^a-zA-Z0-9]/-}.log"; }

record() { # name, seconds, result
  [ "$3" = ok ] || failed_steps=$((failed_steps + 1))
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$table"
}

step() {
  local name=$1 start=$SECONDS result=ok
  shift
  printf '\n==> %s\n' "$name"
  "$@" 2>&1 | tee "$(log_of "$name")" || result=FAILED
  record "$name" "$((SECONDS - start))" "$result"
}

# By process: the step that runs in it, and when it began.
declare -A running=() began=()

beside() {
  local name=$1
  shift
  while [ ${#running[@]} -ge "$places" ]; do one_ends; done
  printf '\n==> %s (beside others)\n' "$name"
  # A process group of its own, so that all of it can be ended.
  set -m
  "$@" >"$(log_of "$name")" 2>&1 </dev/null &
  set +m
  running[$!]=$name began[$!]=$SECONDS
}

one_ends() {
  local process result=ok name seconds
  wait -n -p process "${!running[@]}" || result=FAILED
  name=${running[$process]} seconds=$((SECONDS - began[$process]))
  unset "running[$process]"
  printf '\n<== %s: %s after %s s\n' "$name" "$result" "$seconds"
  if [ "$result" = ok ]; then brief <"$(log_of "$name")"; else cat "$(log_of "$name")"; fi
  record "$name" "$seconds" "$result"
}

together() {
  while [ ${#running[@]} -gt 0 ]; do one_ends; done
}

# What is worth showing of a step that went well; a script may say it otherwise.
brief() { cat; }

stop() {
  local process
  for process in "${!running[@]}"; do kill -TERM -- "-$process" 2>/dev/null; done
  exit 130
}
trap stop INT TERM HUP

finish() {
  printf '\n%-44s %8s  %s\n' step seconds result
  while IFS=$'\t' read -r name seconds result; do
    printf '%-44s %8s  %s\n' "$name" "$seconds" "$result"
  done <"$table"
  printf '%-44s %8s\n' total "$SECONDS"
  [ "$failed_steps" = 0 ]
}
