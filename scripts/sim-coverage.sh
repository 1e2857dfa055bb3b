#!/usr/bin/env bash
# scripts/sim-coverage.sh SEEDS: what of tailwind-protocol and tailwind-primary the simulator alone reaches. Called by ./check --sim-coverage.
# Prints a table by file; the lines that no seed reached are in target/coverage/missed.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pinned=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
rustup component add llvm-tools --toolchain "$pinned" >&2
tools=$(dirname "$(rustup run "$pinned" rustc --print target-libdir)")/bin
out=target/coverage
profiles=$out/profiles
rm -rf "$profiles" && mkdir -p "$profiles"

RUSTFLAGS='-C instrument-coverage' cargo build --locked -p tailwind-sim --target-dir "$out" >&2
LLVM_PROFILE_FILE="$PWD/$profiles/%p.profraw" "$out/debug/tailwind-sim" --seeds "$1" >&2

"$tools/llvm-profdata" merge --sparse "$profiles"/*.profraw -o "$out/sim.profdata"
common=(--instr-profile "$out/sim.profdata" "$out/debug/tailwind-sim" --sources sidecar/protocol/src sidecar/primary/src)
"$tools/llvm-cov" report "${common[@]}" --show-region-summary=false --show-branch-summary=false
"$tools/llvm-cov" show "${common[@]}" --show-instantiations=false | grep -E '^ +[0-9]+\| +0\||^/.*:$' >"$out/missed.txt" || true
