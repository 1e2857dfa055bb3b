#!/usr/bin/env bash
# scripts/mutants.sh [K/N]: mutation testing of tailwind-protocol, tailwind-backup and tailwind-primary. Called by ./check --mutants, which installs cargo-mutants.
#
# Changes one expression of the three crates at a time. First the crates' own tests judge each mutant: unit tests, tables,
# properties. Then the simulator judges those that they let pass, by golden scripts and a budget of seeds of which the kept ones come first; it is
# built for these alone. A mutant that both let pass survives. Survivors are listed in .cargo/mutants-survivors.txt, with a reason; any
# other fails this script.
#
# Each run takes one shard of the mutants: about an hour on two cores. Without K/N it is the shard of the day, so that a run each night
# has tried all of them after SHARDS nights.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

# Some 2,300 mutants in all. One takes 5 to 10 seconds on two cores, and one that the crates' tests let pass a minute more.
SHARDS=10
# What planted bugs need at most is 3000 (docs/testing.md); most are found by the first few hundred.
SEEDS=1000
# Longest that the tests of one mutant may take. An endless loop is found by this, and counts as noticed.
TIMEOUT_S=300

LISTED=.cargo/mutants-survivors.txt
OUT=target/mutants
PACKAGE=sidecar/protocol

shard=${1:-$(($(date +%s) / 86400 % SHARDS))/$SHARDS}
case $shard in
    *[!0-9/]* | */*/* | /* | */) stop "shard $shard: must be K/N, such as 0/$SHARDS" ;;
    */*) [ "${shard%/*}" -lt "${shard#*/}" ] || stop "shard $shard: K counts from 0 to N - 1" ;;
    *) stop "shard $shard: must be K/N, such as 0/$SHARDS" ;;
esac

# own_tests: the crates' own, for cargo.
own_tests() {
    local test
    printf -- '--cargo-arg=%s\n' --locked --package=tailwind-protocol --package=tailwind-backup --package=tailwind-primary --lib
    for test in {"$PACKAGE",sidecar/primary}/tests/*.rs "$PACKAGE"/tests/*/main.rs; do
        test=${test%/main.rs}
        printf -- '--cargo-arg=--test=%s\n' "$(basename "$test" .rs)"
    done
}

# The simulator's scripts and seeds, for cargo. By --test-package the unchanged tree would be tried without them.
SIMULATOR=(--cargo-arg=--locked --cargo-arg=--package=tailwind-sim --cargo-arg=--test=golden --cargo-arg=--test=budget)

# mutate FOLDER ARGUMENT...: judges mutants; the lists are in FOLDER/mutants.out. Dependencies are built once for all shards. The copy
# that is mutated has no target folder.
mutate() {
    local folder=$1 status=0
    shift
    mkdir -p "$folder"
    # A build that was killed may have left it unfit to link, and a mutant that does not link counts as one that does not compile.
    rm -rf "$OUT"/build/*/incremental
    CARGO_TARGET_DIR=$PWD/$OUT/build TAILWIND_SIM_SEEDS=$SEEDS \
        "$TOOLS/bin/cargo-mutants" mutants --package tailwind-protocol --package tailwind-backup --package tailwind-primary \
        --output "$folder" --timeout "$TIMEOUT_S" --build-timeout "$TIMEOUT_S" --jobs 1 --no-times --colors never "$@" || status=$?
    case $status in
        0 | 2 | 3) ;; # all noticed; some survived; some took too long
        *) stop "cargo-mutants failed ($status): $folder/mutants.out/log" ;;
    esac
    if grep -lq 'error: linking with' "$folder"/mutants.out/log/*.log; then
        stop "mutants that compile were not linked, so that nobody judged them: rm -rf $OUT, and once more"
    fi
}

# survivors LIST: cargo-mutants' lines `FILE:LINE:COLUMN: WHAT` as `FILE: WHAT at COLUMN of: SOURCE`. Line numbers change with every
# edit; the source of the line does not, while the mutant is the same.
survivors() {
    local file line column what
    while IFS=: read -r file line column what; do
        printf '%s:%s, at %s of: %s\n' "$file" "$what" "$column" "$(sed -n "${line}s/^ *//p" "$file")"
    done <"$1"
}

say "shard $shard; survivors must be listed in $LISTED"
tests=$OUT/tests simulator=$OUT/simulator
mapfile -t own < <(own_tests)
mutate "$tests" --shard "$shard" --sharding round-robin "${own[@]}"
mapfile -t passed < <(sed "s/[][\\.|\$(){}?+*^]/\\\\&/g; s/^.*\$/--re=^&\$/" "$tests/mutants.out/missed.txt")
rm -rf "$simulator"
mkdir -p "$simulator/mutants.out"
touch "$simulator"/mutants.out/{caught,timeout,missed}.txt
[ ${#passed[@]} = 0 ] || mutate "$simulator" "${passed[@]}" "${SIMULATOR[@]}"

# asked LIST: what the simulator says of those that the tests let pass. cargo-mutants 27 also tries every mutant that takes a field out of
# a struct, whatever --re says.
asked() { sort -u "$simulator/mutants.out/$1.txt" | comm -12 - <(sort -u "$tests/mutants.out/missed.txt"); }

for list in caught timeout; do
    asked "$list" | cat "$tests/mutants.out/$list.txt" - >"$OUT/$list.txt"
done
asked missed >"$OUT/missed.txt"
survivors "$OUT/missed.txt" >"$OUT/survivors.txt"
grep -v -e '^#' -e '^$' "$LISTED" | sort -u >"$OUT/listed.txt" || true
sort -u "$OUT/survivors.txt" | comm -23 - "$OUT/listed.txt" >"$OUT/unlisted.txt"
survivors "$OUT/caught.txt" | sort -u | comm -12 - "$OUT/listed.txt" >"$OUT/noticed.txt"

count() { wc -l <"$1"; }
caught=$(count "$OUT/caught.txt") slow=$(count "$OUT/timeout.txt") missed=$(count "$OUT/survivors.txt")
say "shard $shard: $caught noticed, $slow by taking too long, $missed survived, $(count "$tests/mutants.out/unviable.txt") did not compile"
[ ! -s "$OUT/noticed.txt" ] || { say "listed in $LISTED and noticed now: remove" && cat "$OUT/noticed.txt"; }
[ ! -s "$OUT/unlisted.txt" ] || { say "survived and not listed in $LISTED: write a test, or list it with its reason" && cat "$OUT/unlisted.txt" && exit 1; }
