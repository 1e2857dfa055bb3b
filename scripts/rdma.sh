#!/usr/bin/env bash
# What needs an RDMA device, in virtual machines that have one. Part of ./check.
#   scripts/rdma.sh               all of it: fabric, processes, machines
#   scripts/rdma.sh fabric        the fabric's contract and libibverbs' own tests
#   scripts/rdma.sh processes [MODULE...]  whole groups in one machine, whose processes die: these modules' tests
#   scripts/rdma.sh machines [NAME...]  groups over several machines, which die: the tests with one of these in their name
#   scripts/rdma.sh --report      measures instead: our writes and reads beside perftest's, and the CPU time of a backup
# TAILWIND_ROUNDS is the number of rounds of each test in e2e/tests/processes/kills.rs: 1 by default, 30 for a night.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh
rounds=${TAILWIND_ROUNDS:-1}
# Modules of e2e/tests/processes.
MODULES=(kills killed_tables follows damaged_reads pulls mirrors gets)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
    need_machines
    install_missing
    case ${1:-} in
        --report) report ;;
        '') build_tests && suite fabric "${MODULES[@]}" && machines ;;
        fabric) build_tests && suite fabric ;;
        processes)
            shift
            [ $# -gt 0 ] || set -- "${MODULES[@]}"
            build_tests && suite "$@"
            ;;
        machines) build_tests && machines "${@:2}" ;;
        *) stop "scripts/rdma.sh: no part is named $1: fabric, processes, machines or --report" ;;
    esac
}

report() {
    need perftest command -v ib_write_bw
    install_missing
    cargo build --release --locked --package tailwind-sidecar --package tailwind-e2e --bins --features tailwind-sidecar/verbs
    local program
    for program in tailwind-sidecar rdma_report; do
        strip --strip-debug -o "$work/$program" "$(built release)/$program"
    done
    printf '#!/bin/sh\nexec rdma_report --program /usr/bin/tailwind-sidecar\n' >"$work/script"
    SMP=2 MEM_MB=4096 TIMEOUT_S=3600 \
        e2e/rdma/boot "$work/script" "$work"/{tailwind-sidecar,rdma_report} ib_write_bw ib_read_bw
}

# suite fabric|MODULE...: in one machine.
suite() {
    take fabric
    take processes
    strip --strip-debug -o "$work/tailwind-sidecar" "$(built debug)/tailwind-sidecar"
    printf '#!/bin/sh\nTAILWIND_ROUNDS=%s TAILWIND_SEED=%s exec suite %s\n' "$rounds" "${TAILWIND_SEED:-$(date +%s)}" "$*" \
        >"$work/script"
    cat "$work/script"
    SMP=2 MEM_MB=3584 HUGEPAGES=160 TIMEOUT_S=$((3600 + 120 * rounds)) \
        e2e/rdma/boot "$work/script" "$work"/{tailwind-sidecar,fabric,processes} e2e/rdma/suite
}

machines() {
    local program
    program=$(test_program machines)
    strip --strip-debug -o "$work/tailwind-sidecar" "$(built debug)/tailwind-sidecar"
    (cd e2e && TAILWIND_SIDECAR_PROGRAM=$work/tailwind-sidecar "$program" "$@")
}

# take NAME: a test program. Debug information would fill the machine's memory.
take() {
    strip --strip-debug -o "$work/$1" "$(test_program "$1")"
}

main "$@"
