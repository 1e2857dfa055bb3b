# The control plane of e2e/cluster/cluster: etcd, the API server, controllers and the scheduler on one machine, which is
# also the switch between the nodes. Sourced. Expects
# `cluster` and `CONTROL`.
# shellcheck shell=bash disable=SC2154 # what it expects

# Every machine's and every pod's address is in here.
NETWORK=10.88.0.0/16
GATEWAY=10.88.0.1
SERVICES=10.96.0.0/16
# What pods find in KUBERNETES_SERVICE_HOST.
API_ADDRESS=10.96.0.1
# Nobody is there, so a question for a name fails at once instead of waiting.
DNS_ADDRESS=10.96.0.10

start_control() {
    boot "$CONTROL"
    inside "$CONTROL" bash -ec "
        ip link add wire address 02:00:00:00:00:01 type bridge
        ip addr add $GATEWAY/${NETWORK#*/} dev wire
        ip addr add $API_ADDRESS/32 dev wire
        ip addr add $DNS_ADDRESS/32 dev wire
        ip link set wire up"
    [ -e "$cluster/pki/ca.crt" ] || make_certificates
    # A cluster that is lost with this machine has nothing to flush for.
    serve "$CONTROL" etcd etcd --data-dir "$cluster/$CONTROL/etcd" --unsafe-no-fsync
    api start
    serve "$CONTROL" controller-manager "$(programs)/kube-controller-manager" \
        --kubeconfig="$cluster/controller-manager.kubeconfig" --leader-elect=false \
        --service-account-private-key-file="$cluster/pki/sa.key" --root-ca-file="$cluster/pki/ca.crt" \
        --use-service-account-credentials \
        --cluster-signing-cert-file="$cluster/pki/ca.crt" --cluster-signing-key-file="$cluster/pki/ca.key" \
        --node-monitor-period=1s --node-monitor-grace-period=8s
    serve "$CONTROL" scheduler "$(programs)/kube-scheduler" --kubeconfig="$cluster/scheduler.kubeconfig" --leader-elect=false
}

# Webhooks behind services are reached by the addresses of their pods, since there is no kube-proxy. A node that is lost
# is given up after seconds instead of minutes.
api() {
    case $1 in
        start)
            serve "$CONTROL" apiserver "$(programs)/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=443 \
                --advertise-address=$GATEWAY --enable-aggregator-routing=true \
                --tls-cert-file="$cluster/pki/apiserver.crt" --tls-private-key-file="$cluster/pki/apiserver.key" \
                --client-ca-file="$cluster/pki/ca.crt" --service-account-issuer=https://kubernetes.default.svc \
                --service-account-key-file="$cluster/pki/sa.pub" --service-account-signing-key-file="$cluster/pki/sa.key" \
                --service-cluster-ip-range=$SERVICES --authorization-mode=Node,RBAC --allow-privileged=true \
                --enable-admission-plugins=NodeRestriction --kubelet-preferred-address-types=InternalIP \
                --kubelet-client-certificate="$cluster/pki/admin.crt" --kubelet-client-key="$cluster/pki/admin.key" \
                --default-not-ready-toleration-seconds=5 --default-unreachable-toleration-seconds=5
            within "$PATIENCE_S" api_is_ready || {
                tail -n 20 "$cluster/$CONTROL/log/apiserver.log" >&2
                stop "the API server does not become ready: $cluster/$CONTROL/log/apiserver.log"
            }
            ;;
        stop) end "$CONTROL" apiserver KILL ;;
        freeze) signal "$CONTROL" apiserver STOP ;;
        thaw) signal "$CONTROL" apiserver CONT ;;
        *) stop "api $1: must be stop, start, freeze or thaw" ;;
    esac
}

api_is_ready() { kubectl_admin get --raw /readyz >/dev/null 2>&1; }

# ---- Certificates ---------------------------------------------------------------------------------------------------

make_certificates() {
    mkdir -p "$cluster/pki"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=test-ca \
        -keyout "$cluster/pki/ca.key" -out "$cluster/pki/ca.crt.new" 2>/dev/null
    mv "$cluster/pki/ca.crt.new" "$cluster/pki/ca.crt"
    openssl genrsa -out "$cluster/pki/sa.key" 2048 2>/dev/null
    openssl rsa -in "$cluster/pki/sa.key" -pubout -out "$cluster/pki/sa.pub" 2>/dev/null
    certify apiserver /CN=kube-apiserver "IP:$GATEWAY,IP:$API_ADDRESS,IP:127.0.0.1,DNS:kubernetes.default.svc"
    certify admin /O=system:masters/CN=admin DNS:admin
    certify scheduler /CN=system:kube-scheduler DNS:scheduler
    certify controller-manager /CN=system:kube-controller-manager DNS:controller-manager
}

# certify NAME SUBJECT NAMES: a key, a certificate, and a kubeconfig with both.
certify() {
    local files=$cluster/pki/$1
    [ ! -e "$cluster/$1.kubeconfig" ] || return 0
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" \
        -keyout "$files.key" -out "$files.csr" 2>/dev/null
    openssl x509 -req -in "$files.csr" -CA "$cluster/pki/ca.crt" -CAkey "$cluster/pki/ca.key" -set_serial "0x$(openssl rand -hex 8)" \
        -days 3650 -out "$files.crt" -extfile <(echo "subjectAltName=$3") 2>/dev/null
    cat >"$cluster/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$GATEWAY:443", certificate-authority: $cluster/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $files.crt, client-key: $files.key}}]
contexts: [{name: test, context: {cluster: test, user: $1}}]
current-context: test
END
}
