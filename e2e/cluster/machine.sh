# Machines of e2e/cluster/cluster: each a set of namespaces (processes, mounts, network) that ends as a whole when its
# process 1 does. Sourced. Expects `cluster` (the cluster's folder).
# shellcheck shell=bash disable=SC2154 # what it expects

HERE=$(dirname "${BASH_SOURCE[0]}")
# How long a machine or a program in it may take to start or end.
PATIENCE_S=60

# within SECONDS COMMAND...: until the command succeeds; fails if it never does.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.05
    done
}

# ---- A machine ------------------------------------------------------------------------------------------------------

# boot MACHINE: its disk is the folder of that name, and stays when it goes.
boot() {
    local disk=$cluster/$1 group
    group=$(cgroup_of "$1")
    ! runs "$1" || stop "$1 runs already"
    mkdir -p "$disk"
    rm -f "$disk/pid"
    make_cgroups "$1"
    setsid unshare --mount --net --pid --uts --ipc --fork --propagation private \
        "$HERE/init" "$disk" "$group" >>"$disk/init.log" 2>&1 </dev/null &
    within "$PATIENCE_S" test -e "$disk/pid" || { cat "$disk/init.log" >&2 && stop "$1 does not boot"; }
}

# True while it does. The number may be another's by now: then its command line says so.
runs() {
    local pid
    pid=$(pid_of "$1") && grep -qzFx "$cluster/$1" "/proc/$pid/cmdline" 2>/dev/null
}

ended() { ! runs "$1"; }

pid_of() { cat "$cluster/$1/pid" 2>/dev/null; }

# cut_power MACHINE: nothing of it runs any more when this returns.
cut_power() {
    runs "$1" || return 0
    kill -KILL "$(pid_of "$1")" 2>/dev/null || true
    # What is frozen dies when it thaws.
    set_frozen "$1" no
    within "$PATIENCE_S" ended "$1" || stop "$1 does not end"
    rm -f "$cluster/$1"/{pid,*.pid}
}

# inside MACHINE COMMAND...
inside() {
    local machine=$1
    shift
    runs "$machine" || stop "$machine does not run"
    nsenter --target "$(pid_of "$machine")" --mount --net --pid --uts --ipc "$@"
}

# ---- Its programs ---------------------------------------------------------------------------------------------------

# serve MACHINE NAME COMMAND...: starts a program in the background. Its log is the machine's log/NAME.log.
serve() {
    local machine=$1 name=$2 disk=$cluster/$1
    shift 2
    # The shell replaces itself, so this number, as the machine knows it, is the program's.
    # shellcheck disable=SC2016 # for the shell inside
    inside "$machine" setsid --fork bash -c 'echo $$ >"$1.new"; mv "$1.new" "$1"; log=$2; shift 2; exec "$@" >>"$log" 2>&1 </dev/null' \
        serve "$disk/$name.pid" "$disk/log/$name.log" "$@"
    within "$PATIENCE_S" test -e "$disk/$name.pid" || stop "$name does not start on $machine"
}

# signal MACHINE NAME SIGNAL
signal() {
    local number
    number=$(cat "$cluster/$1/$2.pid" 2>/dev/null) || stop "$2 does not run on $1"
    inside "$1" kill "-$3" "$number"
}

# end MACHINE NAME [SIGNAL]: ends a program and waits until it is gone.
end() {
    local number
    [ -e "$cluster/$1/$2.pid" ] || return 0
    number=$(cat "$cluster/$1/$2.pid")
    # shellcheck disable=SC2016 # for the shell inside
    inside "$1" bash -c 'kill "-$2" "$1" 2>/dev/null; kill -CONT "$1" 2>/dev/null
        for _ in $(seq 600); do kill -0 "$1" 2>/dev/null || exit 0; sleep 0.05; done; kill -KILL "$1"' end "$number" "${3:-TERM}"
    rm "$cluster/$1/$2.pid"
}

# ---- Its control groups ---------------------------------------------------------------------------------------------

# The kubelet of each machine has a root of its own: it kills what it finds below its root and does not know.
cgroup_of() { echo "$(basename "$cluster")/$1"; }

hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo /sys/fs/cgroup
    else
        dirname /sys/fs/cgroup/*/cgroup.procs
    fi
}

make_cgroups() {
    local hierarchy path group
    group=$(cgroup_of "$1")
    for hierarchy in $(hierarchies); do
        path=$hierarchy
        for part in ${group//\// }; do
            # With one hierarchy, what is below may use what is switched on here.
            if [ -e "$path/cgroup.controllers" ]; then
                sed 's/[^ ]*/+&/g' "$path/cgroup.controllers" >"$path/cgroup.subtree_control"
            fi
            path=$path/$part
            mkdir -p "$path"
            # A new one has no processors and no memory.
            [ ! -e "$path/cpuset.cpus" ] || [ -e "$path/cgroup.controllers" ] || {
                cat "$(dirname "$path")/cpuset.cpus" >"$path/cpuset.cpus"
                cat "$(dirname "$path")/cpuset.mems" >"$path/cpuset.mems"
            }
        done
    done
}

remove_cgroups() {
    local hierarchy
    for hierarchy in $(hierarchies); do
        [ ! -e "$hierarchy/$(basename "$cluster")" ] || find "$hierarchy/$(basename "$cluster")" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    for hierarchy in $(hierarchies); do
        [ ! -e "$hierarchy/$(basename "$cluster")" ] || return 1
    done
}

# set_frozen MACHINE yes|no: all of its processes, containers too, stand still or continue, as with a computer that sleeps.
set_frozen() {
    local group old new
    group=$(cgroup_of "$1")
    old=/sys/fs/cgroup/freezer/$group new=/sys/fs/cgroup/$group
    if [ -e "$old/freezer.state" ]; then
        if [ "$2" = yes ]; then echo FROZEN; else echo THAWED; fi >"$old/freezer.state"
        [ "$2" = no ] || within "$PATIENCE_S" grep -qx FROZEN "$old/freezer.state"
    elif [ -e "$new/cgroup.freeze" ]; then
        if [ "$2" = yes ]; then echo 1; else echo 0; fi >"$new/cgroup.freeze"
        [ "$2" = no ] || within "$PATIENCE_S" grep -qx 'frozen 1' "$new/cgroup.events"
    fi
}
