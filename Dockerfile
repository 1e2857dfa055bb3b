# The images: docker build --target operator -t REGISTRY/tailwind-operator:0.1.0 .
#            docker build --target sidecar  -t REGISTRY/tailwind-sidecar:0.1.0 .
#            docker build --target kv       -t REGISTRY/tailwind-kv:0.1.0 .
#            docker build --target exec     -t REGISTRY/tailwind-exec:0.1.0 .
# Builder and images have the same Debian: the sidecar is linked with its libibverbs. For builds that can be repeated, name it by
# digest: --build-arg DEBIAN=debian@sha256:...
ARG DEBIAN=debian:bookworm-slim

# ---- Programs -------------------------------------------------------------------------------------------------------
FROM ${DEBIAN} AS builder
# What scripts/common.sh asks for in need_build_tools and need_verbs; curl gets rustup.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates cmake curl gcc libc6-dev libclang-dev libibverbs-dev make pkg-config python3 \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/root/.cargo/bin:$PATH
WORKDIR /src
COPY rust-toolchain.toml .
# The pinned toolchain, without what only checks need. RUSTUP_TOOLCHAIN below keeps cargo from fetching that.
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o /tmp/rustup-init \
    && sh /tmp/rustup-init -y --no-modify-path --profile minimal \
        --default-toolchain "$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)" \
    && rm /tmp/rustup-init
COPY . .
RUN --mount=type=cache,target=/root/.cargo/registry --mount=type=cache,target=/src/target \
    RUSTUP_TOOLCHAIN="$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)" \
    && export RUSTUP_TOOLCHAIN \
    && cargo build --release --locked --features tailwind-sidecar/verbs \
        --package tailwind-operator --package tailwind-sidecar --package tailwind-example-kv \
    && mkdir /programs \
    && for program in tailwind-operator tailwind-sidecar tailwind-kv; do \
        strip --strip-debug -o "/programs/$program" "target/release/$program" || exit 1; \
    done
# In a layer of its own: tailwind-exec is copied into images of other systems, so it is linked statically.
RUN --mount=type=cache,target=/root/.cargo/registry --mount=type=cache,target=/src/target \
    RUSTUP_TOOLCHAIN="$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)" \
    && export RUSTUP_TOOLCHAIN \
    && host=$(rustc -vV | sed -n 's/^host: //p') \
    && RUSTFLAGS='-C target-feature=+crt-static' \
        cargo build --release --locked --target "$host" --package tailwind-exec \
    && strip --strip-debug -o /programs/tailwind-exec "target/$host/release/tailwind-exec"

# ---- What the images share ------------------------------------------------------------------------------------------
FROM ${DEBIAN} AS base
RUN groupadd --gid 65532 nonroot \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nonroot
LABEL org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.vendor="The Tailwind authors"

# ---- The example app ------------------------------------------------------------------------------------------------
FROM base AS kv
LABEL org.opencontainers.image.title="tailwind-kv" \
    org.opencontainers.image.description="Key-value store that speaks RESP and keeps its keys in a Tailwind table"
COPY --from=builder /programs/tailwind-kv /usr/bin/tailwind-kv
USER 65532:65532
ENTRYPOINT ["/usr/bin/tailwind-kv"]

# ---- What runs unmodified programs ----------------------------------------------------------------------------------
# For an init container that copies it into a volume, or for an image volume. Nothing else is in it.
FROM scratch AS exec
LABEL org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.vendor="The Tailwind authors" \
    org.opencontainers.image.title="tailwind-exec" \
    org.opencontainers.image.description="Runs an unmodified program whose files are replicated by a Tailwind log"
COPY --from=builder /programs/tailwind-exec /usr/bin/tailwind-exec
USER 65532:65532
ENTRYPOINT ["/usr/bin/tailwind-exec"]

# ---- Sidecars and backups -------------------------------------------------------------------------------------------
FROM base AS sidecar
LABEL org.opencontainers.image.title="tailwind-sidecar" \
    org.opencontainers.image.description="Sidecar and backup of a Tailwind log"
# libibverbs loads the cards' drivers by name.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-providers libibverbs1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=builder /programs/tailwind-sidecar /usr/bin/tailwind-sidecar
# With RDMA and `memlock: Capability` pods say root instead: capabilities are for root alone.
USER 65532:65532
ENTRYPOINT ["/usr/bin/tailwind-sidecar"]

# ---- The operator; last, so that it is what a build without --target makes ------------------------------------------
FROM base AS operator
LABEL org.opencontainers.image.title="tailwind-operator" \
    org.opencontainers.image.description="Operator of Tailwind's ReplicaGroups"
COPY --from=builder /programs/tailwind-operator /usr/bin/tailwind-operator
USER 65532:65532
ENTRYPOINT ["/usr/bin/tailwind-operator"]
CMD ["run"]
