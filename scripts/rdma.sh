#!/usr/bin/env bash
# What needs an RDMA device, in virtual machines that have one: scripts/rdma.sh [ROUNDS]. Part of ./check.
# ROUNDS is the number of rounds of each test in e2e/tests/processes/kills.rs: 1 by default, 30 for a night.
# scripts/rdma.sh --report measures instead: our writes and reads beside perftest's, and the CPU time of a backup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh
rounds=${1:-1}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
    need_machines
    install_missing
    case $rounds in
        --report) report ;;
        *) hunt ;;
    esac
}

report() {
    need perftest command -v ib_write_bw
    install_missing
    cargo build --release --locked --package tailwind-sidecar --package tailwind-e2e --bins --features tailwind-sidecar/verbs
    local program
    for program in tailwind-sidecar rdma_report; do
        strip --strip-debug -o "$work/$program" "$(target)/release/$program"
    done
    printf '#!/bin/sh\nexec rdma_report --program /usr/bin/tailwind-sidecar\n' >"$work/script"
    SMP=2 MEM_MB=4096 TIMEOUT_S=900 \
        e2e/rdma/boot "$work/script" "$work"/{tailwind-sidecar,rdma_report} ib_write_bw ib_read_bw
}

hunt() {
    # The very build that the other tests are made from.
    cargo test --workspace --features "$FEATURES" --locked --no-run 2>&1 | tee "$work/build"
    take tests/contract.rs contract
    take tests/processes/main.rs processes
    take tests/verbs.rs verbs
    strip --strip-debug -o "$work/tailwind-sidecar" "$(target)/debug/tailwind-sidecar"
    printf '#!/bin/sh\nTAILWIND_ROUNDS=%s TAILWIND_SEED=%s exec suite\n' "$rounds" "${TAILWIND_SEED:-$(date +%s)}" >"$work/script"
    cat "$work/script"
    SMP=2 MEM_MB=3584 HUGEPAGES=160 TIMEOUT_S=$((600 + 120 * rounds)) \
        e2e/rdma/boot "$work/script" "$work"/{tailwind-sidecar,contract,verbs,processes} e2e/rdma/suite
    TAILWIND_SIDECAR_PROGRAM=$work/tailwind-sidecar \
        cargo test --workspace --features "$FEATURES,$MACHINES" --locked --test machines
}

target() { realpath -m "${CARGO_TARGET_DIR:-target}"; }

# take SOURCE NAME: the test program that cargo has made of SOURCE. Debug information would fill the machine's memory.
take() {
    local program
    program=$(sed -n "s|^ *Executable $1 (\(.*\))$|\1|p" "$work/build")
    strip --strip-debug -o "$work/$2" "$program"
}

main
