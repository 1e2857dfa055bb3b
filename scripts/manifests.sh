#!/usr/bin/env bash
# Writes what is generated in charts/, manifests/ and docs/: the definition, the operator's rights, the table of values in the
# chart's README, the pages of docs/reference, and manifests/install.yaml, which is the chart with its defaults.
#   scripts/manifests.sh          writes them
#   scripts/manifests.sh --check  lints the chart and says what would change. Part of ./check; ends with 77 where the Helm
#                                 engine cannot be had
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

CANNOT_RUN=77
CHART=charts/tailwind
NAMESPACE=tailwind-system

work=$(mktemp -d -t tailwind-manifests.XXXXXX)
trap 'rm -rf "$work"' EXIT

main() {
    mkdir -p "$work/manifests" "$work/charts" "$work/docs/reference"
    cp -r "$CHART" "$work/$CHART"
    write_texts
    case "${1:-}" in
        '')
            e2e/cluster/helm prepare
            write_install
            cp -r "$work/$CHART/." "$CHART/"
            cp "$work/manifests/install.yaml" manifests/install.yaml
            cp "$work"/docs/reference/*.md docs/reference/
            ;;
        --check)
            compare
            e2e/cluster/helm prepare || { say 'the Helm engine cannot be had' && exit $CANNOT_RUN; }
            lint
            write_install
            compare
            ;;
        *) stop "usage: scripts/manifests.sh [--check]" ;;
    esac
}

write_texts() {
    local page
    cp crds/replicagroups.yaml "$work/$CHART/files/"
    build_tests
    "$(built debug)/tailwind-operator" permissions >"$work/$CHART/files/permissions.yaml"
    for page in commands kubernetes metrics report; do
        "$(built debug)/tailwind-reference" $page >"$work/docs/reference/$page.md"
    done
    python3 scripts/values_table.py "$CHART/values.yaml" "$CHART/README.md" >"$work/$CHART/README.md"
}

write_install() {
    {
        printf '# Tailwind. Its images are in no public registry: replace REGISTRY with the one that you have pushed them to.\n'
        printf '%s\n' "# sed -E 's#tailwind-(operator|sidecar):[0-9.]+#REGISTRY/&#' manifests/install.yaml | kubectl create -f -"
        printf '# Generated from %s by scripts/manifests.sh. Do not edit.\n' "$CHART"
        printf -- '---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n' "$NAMESPACE"
        printf '    pod-security.kubernetes.io/enforce: restricted\n'
        # Helm's own marks would say that a release is behind these objects. Nobody uninstalls them as one, either.
        e2e/cluster/helm template tailwind "$work/$CHART" --namespace "$NAMESPACE" \
            | sed -e '/^ *helm\.sh\/chart: /d' -e '/^ *app\.kubernetes\.io\/managed-by: Helm$/d' -e '/^# tailwind\/templates\//d' \
                -e '/^ *annotations:$/{N;/\n *helm\.sh\/resource-policy: keep$/d}'
    } >"$work/manifests/install.yaml"
}

lint() {
    local values
    e2e/cluster/helm lint "$CHART" --namespace "$NAMESPACE"
    for values in "$CHART"/ci/*-values.yaml; do
        say "lint with $values"
        e2e/cluster/helm lint "$CHART" --namespace "$NAMESPACE" --values "$values"
        e2e/cluster/helm template tailwind "$CHART" --namespace "$NAMESPACE" --values "$values" >/dev/null
    done
    keep_apart
}

# No two releases have a cluster-wide object of one name, however their own names and namespaces are put together.
keep_apart() {
    local names shared
    say 'compare the names of several releases'
    names=$(render_releases a-b/c a/b-c a/c "$NAMESPACE"/a-b-c "$NAMESPACE"/a.c)
    [ "$(grep -c MutatingWebhookConfiguration <<<"$names")" -eq 5 ] || stop 'releases lack cluster-wide objects'
    # There is one definition for all.
    shared=$(grep -v CustomResourceDefinition <<<"$names" | sort | uniq -d)
    [ -z "$shared" ] || stop "several releases have: $shared"
}

# render_releases NAMESPACE/NAME...: their cluster-wide objects.
render_releases() {
    local release
    for release in "$@"; do
        e2e/cluster/helm template "${release#*/}" "$CHART" --namespace "${release%/*}" | cluster_wide
    done
}

# Kind and name of each rendered object that has no namespace.
cluster_wide() {
    awk '
        function tell() { if (kind != "" && !namespaced) print kind, name; kind = name = ""; namespaced = 0 }
        /^---/ { tell() }
        /^kind: / { kind = $2 }
        /^  name: / && name == "" { name = $2 }
        /^  namespace: / { namespaced = 1 }
        END { tell() }'
}

# What is there now and what would be written, as far as it is written yet.
compare() {
    local path differ=0
    while read -r path; do
        diff -u --label "$path, as it is" --label "$path, as it is generated" "$path" "$work/$path" || differ=1
    done < <(cd "$work" && find . -type f -printf '%P\n' | sort)
    [ $differ -eq 0 ] || stop 'generated files are out of date: run scripts/manifests.sh and commit what it writes'
}

main "$@"
