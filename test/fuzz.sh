#!/usr/bin/env bash
# Runs every fuzz target of the tree for the time given (default 60s), one after
# another, and prints executions and crashers of each. Inputs of kilobytes would be minimised for
# most of that time; a few tries are enough.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
status=0
for file in $(git ls-files '*_test.go' | xargs grep -l '^func Fuzz'); do
  dir=./$(dirname "$file")
  for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$file"); do
    log=$(mktemp)
    if go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 5x >"$log" 2>&1; then
      printf '%-28s %-24s ok    %s\n' "$dir" "$target" "$(grep -oE 'execs: [0-9]+' "$log" | tail -n 1)"
    else
      status=1
      printf '%-28s %-24s FAIL\n' "$dir" "$target"
      cat "$log"
    fi
    rm -f "$log"
  done
done
exit $status
