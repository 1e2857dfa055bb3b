# Nodes of e2e/cluster/cluster: machines with containerd and a kubelet. Sourced. Expects
# `cluster` and `CONTROL`.
# shellcheck shell=bash disable=SC2154 # what it expects

# What a node says it has, as a device plugin would: pods ask for it, and nothing comes of it.
RDMA_RESOURCE=tailwind.test/rdma
RDMA_COUNT=4

# A kubelet's folder: the volumes of pods are in there.
VOLUMES=/var/lib/kubelet

# node NUMBER COMMAND [ARGUMENT...]
node() {
    local number=$1 machine=node-$1 action=${2:-}
    shift $(($# < 2 ? $# : 2))
    case $action in
        start) start_node "$number" "${1:-}" ;;
        kill)
            set_cable "$number" down
            cut_power "$machine"
            ;;
        stop) shut_down "$machine" ;;
        cut) set_cable "$number" down ;;
        mend) set_cable "$number" up ;;
        freeze) set_frozen "$machine" yes ;;
        thaw) set_frozen "$machine" no ;;
        kubelet)
            case "${1:-}" in
                stop) end "$machine" kubelet ;;
                start) start_kubelet "$number" ;;
                *) stop "kubelet ${1:-}: must be stop or start" ;;
            esac
            ;;
        ctr) inside "$machine" ctr -n k8s.io "$@" ;;
        run) inside "$machine" "$@" ;;
        devices) set_devices "$machine" "${1:-}" ;;
        *) stop "node $number $action: see e2e/cluster/cluster --help" ;;
    esac
}

running_nodes() {
    local disk
    for disk in "$cluster"/node-*/; do
        [ ! -e "$disk/containerd.pid" ] || ! runs "$(basename "$disk")" || basename "$disk"
    done
}

# start_node NUMBER [SIZE]
start_node() {
    local number=$1 machine=node-$1 size=${2:-} image
    boot "$machine"
    [ -z "$size" ] || inside "$machine" bash -ec "mkdir -p $VOLUMES && mount -t tmpfs -o size=$size,mode=755 kubelet $VOLUMES"
    connect_node "$number"
    write_containerd_config "$number"
    serve "$machine" containerd containerd --config "$cluster/$machine/containerd.toml"
    within "$PATIENCE_S" inside "$machine" ctr version >/dev/null 2>&1 || stop "containerd does not start on $machine"
    for image in "$cluster"/images/*.tar; do
        import "$machine" "$image"
    done
    certify "$machine" "/O=system:nodes/CN=system:node:$machine" "DNS:$machine,IP:$(address_of "$number")"
    write_kubelet_config "$number"
    start_kubelet "$number"
}

address_of() { echo "10.88.0.$((100 + $1))"; }

# ---- Its network ----------------------------------------------------------------------------------------------------

# The node's pods and its cable are on one bridge, so that all nodes and all pods share one network.
connect_node() {
    local number=$1
    # The kernel clears a dead machine away in its own time.
    inside "$CONTROL" ip link delete "cable$number" 2>/dev/null || true
    ip link add "cable$number" netns "$(pid_of "$CONTROL")" type veth peer name eth0 netns "$(pid_of "node-$number")"
    inside "$CONTROL" ip link set "cable$number" master wire up
    inside "node-$number" bash -ec "
        ip link add pods address 02:00:00:00:01:0$number type bridge
        ip link set eth0 master pods up
        ip addr add $(address_of "$number")/${NETWORK#*/} dev pods
        ip link set pods up
        ip route add default via $GATEWAY"
    mkdir -p "$cluster/node-$number/cni"
    cat >"$cluster/node-$number/cni/pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": false,
 "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "$cluster/node-$number/addresses",
 "ranges": [[{"subnet": "$NETWORK", "rangeStart": "10.88.$((10 * number)).1", "rangeEnd": "10.88.$((10 * number)).250",
 "gateway": "$GATEWAY"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
}

# set_cable NUMBER up|down. What is sent while it is down is lost silently.
set_cable() { inside "$CONTROL" ip link set "cable$1" "$2"; }

# ---- Its programs ---------------------------------------------------------------------------------------------------

# restrict_oom_score_adj: without CAP_SYS_RESOURCE, as in some virtual hosts, runc cannot lower it, and no pod starts.
write_containerd_config() {
    cat >"$cluster/node-$1/containerd.toml" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$cluster/node-$1/cni"
END
}

import() { inside "$1" ctr -n k8s.io images import "$2" >>"$cluster/$1/import.log" 2>&1 || stop "$1 does not take $2"; }

write_kubelet_config() {
    local extra='' version
    version=$("$(programs)/kubelet" --version | sed 's/^Kubernetes v1\.\([0-9]*\).*/\1/')
    # Where control groups still have many hierarchies, newer ones want to be told that this is known.
    [ "$version" -lt 31 ] || [ -e /sys/fs/cgroup/cgroup.controllers ] || extra='failCgroupV1: false'
    # An empty place for devices would make a kubelet that starts again forget those that were said to be there.
    inside "node-$1" bash -ec "mkdir -p $VOLUMES/device-plugins && touch $VOLUMES/device-plugins/kept"
    cat >"$cluster/node-$1/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(address_of "$1")
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $cluster/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $cluster/pki/node-$1.crt
tlsPrivateKeyFile: $cluster/pki/node-$1.key
cgroupDriver: cgroupfs
cgroupRoot: /$(cgroup_of "node-$1")
clusterDNS: [$DNS_ADDRESS]
clusterDomain: cluster.local
failSwapOn: false
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
serializeImagePulls: false
# Images cannot be fetched again, and the disk is the host's, however full that is.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {nodefs.available: "100Mi", imagefs.available: "100Mi", memory.available: "100Mi"}
# How full volumes are is measured once a minute otherwise, and only then pods are evicted for it.
volumeStatsAggPeriod: 5s
$extra
END
}

start_kubelet() {
    local number=$1 machine=node-$1 runtime=() began
    began=$(date -u +%FT%TZ)
    [[ $("$(programs)/kubelet" --help 2>&1) != *'--container-runtime '* ]] || runtime=(--container-runtime=remote)
    serve "$machine" kubelet "$(programs)/kubelet" --config="$cluster/$machine/kubelet.yaml" \
        --kubeconfig="$cluster/$machine.kubeconfig" --hostname-override="$machine" --node-ip="$(address_of "$number")" \
        --node-labels="topology.kubernetes.io/zone=zone-$number" \
        "${runtime[@]}" --container-runtime-endpoint=unix:///run/containerd/containerd.sock
    within "$PATIENCE_S" node_exists "$machine" || stop "$machine does not join: $cluster/$machine/log/kubelet.log"
    [ -n "$(devices_of "$machine")" ] || set_devices "$machine" "$RDMA_COUNT"
    within "$PATIENCE_S" node_is_ready "$machine" "$began" || stop "$machine does not become ready: $cluster/$machine/log/kubelet.log"
}

node_exists() { kubectl_admin get node "$1" >/dev/null 2>&1; }

# node_is_ready MACHINE SINCE: as its kubelet has said since then. Of one that was killed and not yet missed, what it said before
# stands until it is missed after all, and its pods are evicted.
node_is_ready() {
    local ready='.status.conditions[?(@.type=="Ready")]' said
    said=$(kubectl_admin get node "$1" -o jsonpath="{$ready.status} {$ready.lastHeartbeatTime} {.spec.taints[*].key}")
    [[ $said == "True "*" " ]] && said=${said#True } && [[ ! ${said% } < $2 ]]
}

devices_of() { kubectl_admin get node "$1" -o jsonpath="{.status.capacity['${RDMA_RESOURCE//./\\.}']}"; }

# set_devices MACHINE COUNT
set_devices() {
    case $2 in
        '' | *[!0-9]*) stop "devices $2: must be a number" ;;
    esac
    # kubectl of that age has no way to change a status; the API does.
    inside_network curl -sSf -X PATCH -H 'Content-Type: application/merge-patch+json' \
        --cacert "$cluster/pki/ca.crt" --cert "$cluster/pki/admin.crt" --key "$cluster/pki/admin.key" \
        -d "{\"status\": {\"capacity\": {\"$RDMA_RESOURCE\": \"$2\"}}}" \
        "https://$GATEWAY/api/v1/nodes/$1/status" >/dev/null
}

# As a computer that is switched off: its programs are told, then the power goes.
shut_down() {
    local machine=$1 task
    end "$machine" kubelet
    for task in $(inside "$machine" ctr -n k8s.io tasks ls -q); do
        inside "$machine" ctr -n k8s.io tasks kill -s SIGTERM "$task" 2>/dev/null || true
    done
    within 10 no_app_runs "$machine" || true
    cut_power "$machine"
}

# All that is left are pods' own sleepers, which take no signal.
no_app_runs() {
    local pods tasks
    pods=$(inside "$1" ctr -n k8s.io containers ls | grep -c 'localhost/pause:1' || true)
    tasks=$(inside "$1" ctr -n k8s.io tasks ls | grep -c RUNNING || true)
    [ "$tasks" -le "$pods" ]
}
