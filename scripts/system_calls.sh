#!/usr/bin/env bash
# Counts the system calls of a lone append in the sidecar and its backups with strace, and compares them with those that are committed.
# Part of ./check. Unlike times, they are the same on a busy machine.
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
    cargo build --workspace --features "$FEATURES" --locked --bin tailwind-sidecar
    TAILWIND_SIDECAR_PROGRAM=${TAILWIND_SIDECAR_PROGRAM:-${CARGO_TARGET_DIR:-$PWD/target}/debug/tailwind-sidecar} \
        cargo test --workspace --features "$FEATURES" --locked --test system_calls -- --nocapture
}

main "$@"
