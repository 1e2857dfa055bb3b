# Shared by ./check, ./quickstart and ./bench: messages, packages, the Rust toolchain. Sourced from the top of the repository.
# shellcheck shell=bash disable=SC2034 # its variables are for the scripts that source it

# The same for everybody who calls, su and cron included: others may read what is built, the programs of root are found, and
# programs say what scripts look for.
umask 022
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d : -f 6)}" PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" LC_ALL=C.UTF-8

# Tools that are built once for all clones.
TOOLS="$HOME/.cache/tailwind/tools"
# What tests, clippy and docs are built with, always for the whole workspace, so that each crate is compiled once: RDMA, as in
# releases; the fabrics that only ./bench has; bugs that tests plant at run time; tests that need machines of their own.
FEATURES=tailwind-sidecar/verbs,tailwind-fabric/verbs,tailwind-fabric/baselines,tailwind-sim/planted-bugs,tailwind-operator/planted-bugs
FEATURES=$FEATURES,tailwind-exec/planted-bugs,tailwind-e2e/machines,tailwind-e2e/cluster
# The test programs that `build_tests` has made, as cargo names them.
TEST_PROGRAMS=target/check/programs.json
# The programs of Kubernetes that e2e/cluster/build makes.
KUBERNETES="$HOME/.cache/tailwind/kubernetes/1.20.2"
# Where Debian keeps the source of a Go package of which Kubernetes has a broken one.
REFLECT2=/usr/share/gocode/src/github.com/modern-go/reflect2

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    BOLD=$'\e[1m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' RED='' PLAIN=''
fi

# Also where the clone belongs to another user, as one that is mounted into a container.
git() { command git -c safe.directory="$(pwd -P)" "$@"; }

say() { printf '%s\n' "$*"; }

# Ends the script with what is wrong and what to do about it.
stop() {
    printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2
    exit 1
}

# Debian packages that `need` found missing.
missing=()

# need PACKAGE PROBE...: notes the package if the probe fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 </dev/null || missing+=("$package")
}

can_include() { echo "#include <$1>" | cc -x c -fsyntax-only -; }
is_debian_root() { [ "$(id -u)" -eq 0 ] && command -v apt-get; }

apt_updated=no
apt_update() {
    [ "$apt_updated" = yes ] || alone update_lists || stop "apt-get update failed: is the network up?"
    apt_updated=yes
}

# Unlike for an installation, apt does not wait for another one that updates.
update_lists() {
    local attempt
    for attempt in {1..12}; do
        apt-get update -qq && return
        [ "$attempt" -eq 12 ] || sleep 5
    done
    return 1
}

# Installs what `need` noted. Without root, or without apt, names it and stops.
install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    is_debian_root >/dev/null || stop "missing packages; as root: apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    apt_update
    apt_install "${missing[@]}" || stop "apt-get install ${missing[*]} failed"
    missing=()
}

# apt_install PACKAGE...: starts no service; tests and benchmarks start such programs themselves.
apt_install() { alone without_services install_packages "$@" >/dev/null; }

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    # apt refuses to install anything after an installation that was interrupted.
    dpkg --force-confold --configure -a 2>/dev/null || true
    apt-get install -y -qq -o DPkg::Lock::Timeout=600 --no-install-recommends "$@"
}

# alone COMMAND...: while no other script of ours uses apt. It would remove the other's answer about services.
alone() (
    mkdir -p /run/lock
    exec {lock}>/run/lock/tailwind-apt
    flock "$lock"
    "$@"
)

# Where Debian's packages ask whether they may start their services, and a line that says whose answer it is.
POLICY=/usr/sbin/policy-rc.d
POLICY_MARK='# Written by Tailwind (scripts/common.sh) for an installation, and removed after it.'

# without_services COMMAND...: what it installs starts no service. In a shell of its own, so that the answer goes with it, however
# it ends; one that was killed has left its answer.
without_services() (
    if [ ! -e "$POLICY" ] || grep -qxF "$POLICY_MARK" "$POLICY"; then
        trap 'rm -f "$POLICY"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
        chmod +x "$POLICY"
    fi
    "$@"
)

# with_progress COMMAND...: runs cargo, with one line on the terminal that says how far it is, and what else it says only if it
# fails. Its standard output stays as it is.
with_progress() {
    local log status=0
    log=$(mktemp)
    # Cargo is asked for its progress as lines: on a terminal it would scroll by a line for each crate.
    { CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100 CARGO_TERM_COLOR=never "$@" 2>&1 1>&3 \
        | tr '\r' '\n' | tee "$log" | show_progress; } 3>&1 || status=$?
    [ $status -eq 0 ] || grep -v '^ *Building \[' "$log" >&2
    rm -f "$log"
    return $status
}

# The file descriptor on which progress is shown; nothing where that is of no interest.
PROGRESS=${PROGRESS-2}
export PROGRESS

# Of cargo's progress (`Building [==>  ] 37/179: tokio, ring`): how many crates are built of all, and which are being built. On a
# terminal at the end of the line on which the cursor is, and gone at the end; otherwise in a line for each quarter. A build that
# finds nothing to do says nothing.
show_progress() {
    local line done_of_all now quarter said='' width
    width=$(tput cols 2>/dev/null || echo 80)
    [ -z "$PROGRESS" ] || [ ! -t "$PROGRESS" ] || printf '\e7' >&"$PROGRESS"
    while read -r line; do
        case $line in 'Building ['*']'*) ;; *) continue ;; esac
        [ -n "$PROGRESS" ] || continue
        line=${line##*\] }
        done_of_all=${line%%:*} now=${line#*: }
        line="building ${done_of_all/\// of } crates: $now"
        if [ -t "$PROGRESS" ]; then
            printf '\e8\e[K%s' "${line:0:width-16}" >&"$PROGRESS"
            continue
        fi
        quarter=$((4 * ${done_of_all%/*} / ${done_of_all#*/}))
        [ "$quarter" != "$said" ] || continue
        said=$quarter
        say "$line" >&"$PROGRESS"
    done
    [ -z "$PROGRESS" ] || [ ! -t "$PROGRESS" ] || printf '\e8\e[K' >&"$PROGRESS"
}

# Builds every program that is tested, and every test: the one build of ./check and of what it calls.
build_tests() {
    local fresh=$TEST_PROGRAMS.$$
    mkdir -p "$(dirname "$TEST_PROGRAMS")"
    with_progress cargo test --workspace --features "$FEATURES" --locked --no-run --timings \
        --message-format json-render-diagnostics >"$fresh" || { rm -f "$fresh" && return 1; }
    mv "$fresh" "$TEST_PROGRAMS"
}

# test_program NAME: the file of the test program that cargo made of tests/NAME.rs or tests/NAME/main.rs.
test_program() {
    sed -n "s|^.*\"kind\":\[\"test\"\].*\"name\":\"$1\".*\"executable\":\"\([^\"]*\)\".*$|\1|p" "$TEST_PROGRAMS" \
        | grep . || stop "$TEST_PROGRAMS names no test program $1"
}

# built debug|release|quickstart: the folder in which cargo puts such programs.
built() { realpath -m "${CARGO_TARGET_DIR:-target}/$1"; }

# need_memory MIB: stops unless so much is free in /dev/shm, or root can make it larger. In a container Docker gives it 64 MiB.
need_memory() {
    local size=$((($1 + 1023) / 1024))g
    [ "$(free_memory)" -lt "$1" ] || return 0
    if [ "$(id -u)" -eq 0 ] && mount -o "remount,size=$size" /dev/shm 2>/dev/null && [ "$(free_memory)" -ge "$1" ]; then
        say "made /dev/shm larger: $size"
        return
    fi
    stop "/dev/shm has $(free_memory) MiB free, and this needs $1 MiB:" \
        "as root, mount -o remount,size=$size /dev/shm, or start the container with --shm-size=$size"
}

free_memory() { echo $(($(df --output=avail --block-size=1M /dev/shm | tail -n 1))); }

# What any build needs: a C compiler, for the crates that contain C or assembly, and certificates, to fetch crates.
need_build_tools() {
    need gcc command -v cc
    need libc6-dev can_include stdlib.h
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
}

# What virtual machines with soft-RoCE are made from: e2e/rdma/boot.
need_machines() {
    need qemu-system-x86 command -v qemu-system-x86_64
    need busybox-static command -v busybox
    need xz-utils command -v xz
    need cpio command -v cpio
    need kmod command -v modprobe
    need iproute2 command -v rdma
    need ibverbs-providers test -e /etc/libibverbs.d/rxe.driver
}

# The unmodified programs that run under tailwind-exec, and the language of what drives SQLite: e2e/tests/processes.
need_unmodified() {
    need_redis
    need sqlite3 command -v sqlite3
    need python3 python3 -c 'import sqlite3'
    need postgresql compgen -G '/usr/lib/postgresql/*/bin/postgres'
}

# Redis, and redis-cli with it.
need_redis() {
    need redis-server command -v redis-server
}

# What counts instructions: scripts/instructions.sh.
need_valgrind() {
    need valgrind command -v valgrind
}

# What a cluster on this machine is made from: e2e/cluster.
need_cluster() {
    need etcd-server command -v etcd
    need containerd command -v containerd
    need runc command -v runc
    need containernetworking-plugins test -e /usr/lib/cni/bridge
    need openssl command -v openssl
    need iproute2 command -v ip
    need kubernetes-client command -v kubectl
    need curl command -v curl
    need_helm
    need ibverbs-providers test -e /etc/libibverbs.d/rxe.driver
    # Where apt does not have them there is no use in asking for them: ./check says so.
    [ -n "${TAILWIND_KUBERNETES:-}" ] || [ -e "$KUBERNETES" ] || ! is_bookworm || need_kubernetes_source
}

is_bookworm() { grep -qx 'VERSION_CODENAME=bookworm' /etc/os-release; }

# What the Helm engine comes with: e2e/cluster/helm.
need_helm() {
    need python3 command -v python3
    need python3-venv compgen -G '/usr/lib/python3*/ensurepip'
}

# What Kubernetes itself is built with. Only Debian 12 has both its source and a Go that it builds with.
need_kubernetes_source() {
    need golang-1.19-go test -x /usr/lib/go-1.19/bin/go
    need golang-github-modern-go-reflect2-dev test -e "$REFLECT2"
    need dpkg-dev command -v dpkg-source
    need rsync command -v rsync
    need make command -v make
}

# What the crate ibverbs is built with: it brings the sources of rdma-core, of which it makes bindings, and links this
# system's library. libibverbs-dev depends on the libnl that rdma-core asks for; make is only recommended by cmake.
need_verbs() {
    need cmake command -v cmake
    need make command -v make
    need pkg-config command -v pkg-config
    need libclang-dev compgen -G '/usr/lib/llvm-*/lib/libclang.so'
    need libibverbs-dev can_include infiniband/verbs.h
    need python3 command -v python3 # rdma-core's CMake asks for it
}

# The shared libraries that programs need, as ldd finds them.
libraries_of() {
    command -v "$@" | xargs -d '\n' ldd 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' | sort -u || true
}

# copy_libraries ROOT PROGRAM...
copy_libraries() {
    local root=$1 library
    shift
    for library in $(libraries_of "$@"); do
        mkdir -p "$root$(dirname "$library")"
        cp -Ln "$library" "$root$library"
    done
}

# The rustup that is fetched where apt has none, as in Debian 12, and its checksum.
RUSTUP=https://static.rust-lang.org/rustup/archive/1.28.2/x86_64-unknown-linux-gnu/rustup-init
RUSTUP_SHA256=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c

install_rustup() {
    apt_update
    if [ -n "$(apt-cache madison rustup)" ]; then
        missing+=(rustup)
        install_missing
    elif [ "$(uname -m)" = x86_64 ]; then
        fetch_rustup
    fi
}

fetch_rustup() {
    local folder said
    need curl command -v curl
    install_missing
    say "installing rustup from $RUSTUP"
    folder=$(mktemp -d)
    said=$({
        curl --proto '=https' --tlsv1.2 --retry 3 -fsSL "$RUSTUP" -o "$folder/rustup-init" \
            && sha256sum --check --quiet <<<"$RUSTUP_SHA256  $folder/rustup-init" \
            && chmod +x "$folder/rustup-init" \
            && "$folder/rustup-init" -y --no-modify-path --profile minimal --default-toolchain none
    } 2>&1) || said="$said"$'\n''rustup could not be installed: is the network up?'
    rm -rf "$folder"
    command -v rustup >/dev/null || stop "$said"
}

# Finds the pinned Rust toolchain, or gets it by rustup; without rustup says how.
need_rust() {
    local pinned said
    pinned=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! command -v cargo >/dev/null && is_debian_root >/dev/null; then
        install_rustup
    fi
    if command -v rustup >/dev/null && ! rustup run "$pinned" cargo clippy --version >/dev/null 2>&1; then
        say "installing Rust $pinned"
        said=$(rustup toolchain install "$pinned" --profile minimal --component rustfmt --component clippy 2>&1) \
            || stop "$said"$'\n'"rustup could not install Rust $pinned: is the network up?"
    fi
    case "$(cargo --version 2>/dev/null)" in
        "cargo $pinned "*) ;;
        '') stop "Rust is missing. Get rustup (https://rustup.rs) and run this again: it fetches the pinned $pinned." ;;
        *) stop "Rust $pinned is pinned, but here is $(cargo --version). Get rustup (https://rustup.rs) and run this again." ;;
    esac
}
