#!/usr/bin/env bash
# Builds the images and gives them to the nodes of a test cluster, without a registry and, if need be, without a container
# engine: then cargo builds the programs, and e2e/cluster/image packs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

# The tag that the chart has by default.
VERSION=$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' charts/tailwind/Chart.yaml)

usage() {
    cat <<END
scripts/images.sh [OPTION...] TARGET
  Builds the images tailwind-operator, tailwind-sidecar, tailwind-kv (the example app) and tailwind-exec (for unmodified
  programs), loads them into TARGET, and says with which values the chart finds them there. TARGET:
    kind[:CLUSTER]        every node of a kind cluster
    minikube[:PROFILE]    every node of a minikube cluster
    k3d[:CLUSTER]         every node of a k3d cluster
    k3s                   this node of a k3s cluster, as root
    containerd            this node, if its kubelet uses containerd, as root. Repeat on each node, or copy the archives
    archives              nothing: only writes the archives
  Options:
    --with ENGINE         docker, podman, nerdctl or buildah builds them with the Dockerfile; cargo builds them on this host,
                          which has to have the nodes' architecture. Not given: the first engine that works, or else cargo
    --programs FOLDER     packs the programs in FOLDER; builds nothing
    --archives FOLDER     where the archives stay (default: target/images), as \`docker save\` writes them
    --tag TAG             default: $VERSION. With a new tag for each build, pods never run an older one
  Variables:
    RDMA=yes              with cargo: builds the sidecar with RDMA. The Dockerfile always does
END
}

IMAGES=(operator sidecar kv exec)
ENGINES=(docker podman nerdctl buildah)
# No registry has this name, so nothing is ever pulled in place of what was loaded.
REGISTRY=localhost

target='' engine='' programs='' archives=target/images tag=$VERSION

main() {
    read_arguments "$@"
    check_target
    if [ -n "$programs" ]; then
        engine=cargo
    elif [ -z "$engine" ]; then
        choose_engine
    else
        works "$engine" || stop "--with $engine: $(why_not "$engine")"
    fi
    mkdir -p "$archives"
    if [ "$engine" = cargo ]; then pack_images; else build_images; fi
    local name
    for name in "${IMAGES[@]}"; do
        load "$(archive "$name")" "$(image "$name")"
    done
    say_how_to_install
}

read_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) usage && exit ;;
            --with | --programs | --archives | --tag)
                [ -n "${2:-}" ] || stop "$1 needs a value: see scripts/images.sh --help"
                case $1 in
                    --with) engine=$2 ;;
                    --programs) programs=$2 ;;
                    --archives) archives=$2 ;;
                    --tag) tag=$2 ;;
                esac
                shift
                ;;
            -*) stop "unknown option $1: see scripts/images.sh --help" ;;
            *)
                [ -z "$target" ] || stop "two targets, $target and $1: give one"
                target=$1
                ;;
        esac
        shift
    done
    [ -n "$target" ] || { usage >&2 && exit 2; }
    case $engine in
        '' | docker | podman | nerdctl | buildah | cargo) ;;
        *) stop "--with $engine: must be docker, podman, nerdctl, buildah or cargo" ;;
    esac
    [ -z "$engine" ] || [ -z "$programs" ] || stop '--with and --programs: give one'
    [[ $tag =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ ]] || stop "--tag $tag: letters, digits, dots, dashes and underscores"
    [ "$tag" != latest ] || stop '--tag latest: Kubernetes would pull it. Choose another tag'
}

# Before minutes are spent on a build.
check_target() {
    case $target in
        kind | kind:?*) need_tool kind && need_cluster_named "$(name_or kind)" kind get clusters ;;
        k3d | k3d:?*) need_tool k3d && need_cluster_named "$(name_or k3s-default)" list_k3d ;;
        minikube | minikube:?*)
            need_tool minikube
            minikube --profile "$(name_or minikube)" status >/dev/null 2>&1 \
                || stop "target $target: it is not running: minikube start --profile $(name_or minikube)"
            ;;
        k3s) need_tool k3s && need_root ;;
        containerd) need_tool ctr && need_root ;;
        archives) ;;
        *) stop "target $target: must be kind[:CLUSTER], minikube[:PROFILE], k3d[:CLUSTER], k3s, containerd or archives" ;;
    esac
}

need_tool() { command -v "$1" >/dev/null || stop "target $target: $1 is not installed, or not in PATH"; }
need_root() { [ "$(id -u)" -eq 0 ] || stop "target $target: run this as root, who may use containerd's socket"; }

# What follows the colon, or else the name that the tool takes by default.
name_or() {
    case $target in
        *:*) echo "${target#*:}" ;;
        *) echo "$1" ;;
    esac
}

# need_cluster_named NAME COMMAND...: the command lists them, one on each line.
need_cluster_named() {
    local name=$1 all
    shift
    all=$("$@" 2>/dev/null || true)
    grep -qxF -- "$name" <<<"$all" || stop "target $target: there is no cluster $name; there is: ${all:-none}"
}

list_k3d() { k3d cluster list --no-headers | awk '{ print $1 }'; }

# ---- Building -------------------------------------------------------------------------------------------------------

choose_engine() {
    for engine in "${ENGINES[@]}"; do
        ! works "$engine" || return 0
    done
    engine=cargo
    say "no container engine works here: cargo builds the programs, for nodes of this architecture ($(uname -m))"
}

# Whether it is here, and its daemon answers if it has one.
works() {
    case $1 in
        cargo) true ;;
        *) "$1" info >/dev/null 2>&1 ;;
    esac
}

why_not() { if command -v "$1" >/dev/null; then echo "it does not work: try '$1 info'"; else echo 'it is not installed'; fi; }

build_images() {
    local name
    for name in "${IMAGES[@]}"; do
        say "$engine builds $(image "$name")"
        "$engine" build --target "$name" -t "$(image "$name")" .
        # podman and buildah refuse to add to an archive.
        rm -f "$(archive "$name")"
        case $engine in
            buildah) buildah push "$(image "$name")" "docker-archive:$(archive "$name"):$(image "$name")" ;;
            *) "$engine" save -o "$(archive "$name")" "$(image "$name")" ;;
        esac
    done
}

pack_images() {
    local name rdma
    command -v strip >/dev/null || stop 'strip is missing; on Debian, as root: apt-get install binutils'
    [ -n "$programs" ] || build_programs
    for name in "${IMAGES[@]}"; do
        [ -x "$programs/tailwind-$name" ] || stop "$programs has no program tailwind-$name"
        rdma=
        [ "$name" != sidecar ] || rdma=${RDMA:-}
        say "packing $(image "$name")"
        RDMA=$rdma e2e/cluster/image "$(image "$name")" "$(archive "$name")" "$programs/tailwind-$name"
    done
}

build_programs() {
    local features=() host release=${CARGO_TARGET_DIR:-target}
    need_build_tools
    if [ "${RDMA:-}" = yes ]; then
        need_verbs
        features=(--features tailwind-sidecar/verbs)
    fi
    install_missing
    need_rust
    cargo build --release --locked "${features[@]}" \
        --package tailwind-operator --package tailwind-sidecar --package tailwind-example-kv
    # Copied into images of other systems, so without libraries. As in the Dockerfile.
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --target "$host" --package tailwind-exec
    programs=target/images/programs
    mkdir -p "$programs"
    cp "$release"/release/tailwind-{operator,sidecar,kv} "$release/$host/release/tailwind-exec" "$programs/"
}

image() { echo "$REGISTRY/tailwind-$1:$tag"; }
archive() { echo "$archives/tailwind-$1.tar"; }

# ---- Loading --------------------------------------------------------------------------------------------------------

# load ARCHIVE IMAGE
load() {
    [ "$target" = archives ] || say "loading $2 into $target"
    case ${target%%:*} in
        kind) kind load image-archive "$1" --name "$(name_or kind)" ;;
        minikube) minikube --profile "$(name_or minikube)" image load "$1" ;;
        k3d) k3d image import "$1" --cluster "$(name_or k3s-default)" ;;
        k3s) import_here "$1" "$2" k3s ctr ;;
        containerd) import_here "$1" "$2" ctr ;;
        archives) say "$1 is $2" ;;
    esac
}

# import_here ARCHIVE IMAGE CTR...: kubelets look in the namespace k8s.io.
import_here() {
    local archive=$1 image=$2
    shift 2
    "$@" --namespace k8s.io images import "$archive" >/dev/null
    [ -n "$("$@" --namespace k8s.io images list -q "name==$image")" ] || stop "containerd has taken $archive, but has no $image"
}

say_how_to_install() {
    local tags=
    [ "$tag" = "$VERSION" ] || tags=" --set image.tag=$tag,sidecarImage.tag=$tag"
    if [ "$target" = archives ]; then
        say "
Load each archive on every node, for instance: ctr --namespace k8s.io images import $(archive operator)"
    fi
    say "
Then install the chart, and the example app for one node or for three and more:
  helm install tailwind charts/tailwind --namespace tailwind-system --create-namespace --set registry=$REGISTRY$tags
  sed 's#tailwind-kv:$VERSION#tailwind-kv:$tag#' manifests/samples/group-one-node.yaml | kubectl apply -f -
  sed 's#tailwind-kv:$VERSION#$REGISTRY/tailwind-kv:$tag#' manifests/samples/kv.yaml | kubectl apply -f -
An unmodified Redis:
  sed 's#tailwind-exec:$VERSION#$REGISTRY/tailwind-exec:$tag#' manifests/samples/redis.yaml | kubectl apply -f -"
}

main "$@"
