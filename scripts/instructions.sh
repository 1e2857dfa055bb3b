#!/usr/bin/env bash
# Counts the instructions of the append path and of the scan under callgrind, and compares them with those that are committed.
# Part of ./check. Unlike times, they are the same on a busy machine.
#   scripts/instructions.sh            fails if a piece of work takes over 10 % more
#   scripts/instructions.sh --accept   writes the new figures; the commit says what they buy
# The build is that of the tests: log bytes and fabric are optimised, the sidecar's own code is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

FIGURES=sidecar/tests/instructions.txt
WORK=(one_append five_hundred_appends batch_of_a_hundred one_apply a_hundred_applies scan_of_a_megabyte)
# Repetitions of the two runs: their difference is what counts.
FEW=10
MORE=60

main() {
    local work figures count committed
    need_valgrind
    install_missing
    build_tests
    program=$(test_program instructions)
    figures=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$figures'" EXIT
    for work in "${WORK[@]}"; do
        count=$((($(run "$work" $MORE) - $(run "$work" $FEW)) / (MORE - FEW)))
        [ "$count" -gt 0 ] || stop "$work took no instructions: what was counted?"
        echo "$work $count" | tee -a "$figures"
    done
    if [ "${1:-}" = --accept ]; then
        cp "$figures" "$FIGURES"
        return
    fi
    failed=
    while read -r work count; do
        committed=$(awk -v work="$work" '$1 == work { print $2 }' "$FIGURES")
        [ -n "$committed" ] || stop "$FIGURES has no figure for $work: scripts/instructions.sh --accept"
        awk -v work="$work" -v new="$count" -v old="$committed" 'BEGIN {
            change = sprintf("%s: %d instructions, %d are committed (%+.1f %%)", work, new, old, (new / old - 1) * 100)
            if (new > old * 1.1) { print change; exit 1 }
            if (new < old * 0.9) print change ": if it stays so, accept it"
        }' || failed=yes
    done <"$figures"
    [ -z "$failed" ] \
        || stop "the append path or the scan does more than before: find out why, or accept it with a reason in the commit: scripts/instructions.sh --accept"
}

# run WORK REPEAT: instructions of one run.
run() {
    local log
    log=$(cd sidecar && TAILWIND_REPEAT=$2 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        "$program" --exact "$1" --test-threads=1 2>&1) || { printf '%s\n' "$log" >&2 && return 1; }
    sed -n 's/^==[0-9]*== Collected : //p' <<<"$log" | grep . || { printf '%s\n' "$log" >&2 && return 1; }
}

main "$@"
