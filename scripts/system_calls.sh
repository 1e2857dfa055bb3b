#!/usr/bin/env bash
# Counts the system calls of a lone append in the sidecar and its backups with strace, and compares them with those that are
# committed. ./check runs the same test among the others. Unlike times, they are the same on a busy machine.
#   scripts/system_calls.sh            fails if a lone append asks more of the kernel
#   scripts/system_calls.sh --accept   writes the new figures; the commit says what they buy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

main() {
    need strace command -v strace
    install_missing
    if [ "${1:-}" = --accept ]; then
        export TAILWIND_ACCEPT=1
    fi
    build_tests
    program=$(test_program system_calls)
    cd e2e
    TAILWIND_SIDECAR_PROGRAM=${TAILWIND_SIDECAR_PROGRAM:-$(cd .. && built debug)/tailwind-sidecar} "$program" --nocapture
}

main "$@"
