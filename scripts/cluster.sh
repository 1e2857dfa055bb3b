#!/usr/bin/env bash
# Tests in a real Kubernetes cluster: scripts/cluster.sh [NAME...], those whose names contain one of these. Part of ./check.
# With KUBECONFIG, in that cluster: then TAILWIND_IMAGES says where its nodes find the images (`PREFIX` of `PREFIXsidecar:e2e`;
# e2e/cluster/image packs them), and what only a cluster on this machine allows is named in lines `cannot run: ...`.
# With TAILWIND_KUBERNETES=FOLDER, of another version than e2e/cluster/build's.
# With KEEP=yes the cluster stays, and is named: e2e/cluster/cluster FOLDER does things to it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh
filter=${1:-}
others=("${@:2}")

# One for what must not be lost, three that tests kill. A test that needs another starts node-5.
NODES=4
KEPT_LABEL=tailwind.test/kept
# The tests that need a sidecar of an earlier commit, which takes minutes to build, by which one (e2e/cluster/earlier_sidecar).
declare -A EARLIER_TESTS=(
    [log]=skew::builds_of_different_ages_work_together
    [table]=tables::tables_of_different_builds_work_together
)
LOGS=target/check/cluster
# How the test program is told what to leave out.
skipped=()

work=
clean_up() {
    trap - EXIT
    trap '' INT TERM
    [ -n "$work" ] || return 0
    keep_logs || true
    if [ "${KEEP:-}" = yes ]; then
        say "the cluster stays: e2e/cluster/cluster $work run kubectl get pods --all-namespaces"
        return 0
    fi
    e2e/cluster/cluster "$work" down
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

main() {
    local build
    [ -n "${KUBECONFIG:-}" ] || { [ "$(id -u)" -eq 0 ] || stop 'a cluster on this machine needs root'; }
    need_cluster
    need_unmodified
    install_missing
    e2e/cluster/helm prepare
    build_tests
    if [ -z "${KUBECONFIG:-}" ]; then
        # With a line about it, because it takes minutes.
        e2e/cluster/build
        work=$(mktemp -d -t tailwind-cluster.XXXXXX)
        mkdir -p "$work/images"
        pack_images
        for build in "${!EARLIER_TESTS[@]}"; do
            ! is_wanted "${EARLIER_TESTS[$build]}" || pack_earlier_sidecar "$build"
        done
        start
        export TAILWIND_CLUSTER=$work
    fi
    local program
    program=$(test_program cluster)
    (cd e2e && "$program" --test-threads=1 "${skipped[@]}" ${filter:+"$filter"} "${others[@]}")
}

pack_images() {
    local built
    built=$(built debug)
    pack loader "$built/loader"
    NONROOT=yes RDMA=yes pack sidecar "$built/tailwind-sidecar"
    NONROOT=yes pack operator "$built/tailwind-operator"
    NONROOT=yes pack kv "$built/tailwind-kv"
    NONROOT=yes pack exec "$built/tailwind-exec"
    NONROOT=yes pack table "$built/tailwind-sidecar" bash sleep
    pack redis redis-server redis-cli
    pack tools bash curl cat sleep
}

# is_wanted TEST: whether the names that were given include it.
is_wanted() {
    local name
    for name in "$filter" "${others[@]}"; do
        [[ $1 != *"$name"* ]] || return 0
    done
    return 1
}

# pack_earlier_sidecar log|table
pack_earlier_sidecar() {
    local test=${EARLIER_TESTS[$1]} program status=0
    program=$(e2e/cluster/earlier_sidecar "$1") || status=$?
    if [ $status -eq 77 ]; then
        say "cannot run: $test: this clone lacks the earlier commit (git fetch --unshallow)"
        skipped+=(--skip "$test")
        return
    fi
    [ $status -eq 0 ] || return $status
    NONROOT=yes RDMA=yes TAG=earlier-$1 pack sidecar "$program"
}

# pack NAME PROGRAM...: with the tag e2e, or TAG.
pack() {
    local name=$1 tag=${TAG:-e2e}
    shift
    e2e/cluster/image "localhost/tailwind-$name:$tag" "$work/images/$name-$tag.tar" "$@"
}

start() {
    local began=$SECONDS
    # Should this be killed, the cluster ends all the same.
    [ "${KEEP:-}" = yes ] || export OWNER=$$
    e2e/cluster/cluster "$work" up "$NODES"
    e2e/cluster/cluster "$work" run kubectl label node node-1 "$KEPT_LABEL=yes" >/dev/null
    say "a cluster of $NODES nodes, up in $((SECONDS - began)) s: $work"
}

keep_logs() {
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    local machine
    for machine in "$work"/*/log; do
        [ -d "$machine" ] || continue
        cp -r "$machine" "$LOGS/$(basename "$(dirname "$machine")")"
    done
    [ ! -d "$work/kept" ] || cp -r "$work/kept" "$LOGS/pods"
}

main
