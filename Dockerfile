# The three programs in one image, for linux/amd64 and linux/arm64, by BuildKit:
#   docker build --platform linux/amd64 -t kubesvc:0.1.0 .
#   docker buildx create --use && docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.com/kubesvc:0.1.0 --push .
# A container says which one it is: `command: [kubesvc-operator]` or `command: [kubesvc-agent]`.
# The kubectl plugin is there to be copied out: `docker cp "$(docker create kubesvc:0.1.0)":/usr/local/bin/kubectl-kubesvc .`
#
# The bases are named by tag. Where images are released, give what was reviewed: `docker buildx imagetools inspect TAG`
# prints the digest, and `--build-arg BUILD_BASE=…@sha256:…` and RUNTIME_BASE take it. The release workflow takes nothing
# else.
ARG BUILD_BASE=rust:1.95-trixie
# glibc of the same Debian (change both together), certificates of public authorities, and the user 65532; no shell, no package manager.
ARG RUNTIME_BASE=gcr.io/distroless/cc-debian13:nonroot

# Runs on the machine that builds, and compiles for the other platform, which is many times faster than emulating it.
FROM --platform=${BUILDPLATFORM} ${BUILD_BASE} AS build
ARG TARGETARCH
WORKDIR /src
ENV CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# The platform in the three notations that there are, and the compiler for its C code.
RUN set -eu; \
    case "${TARGETARCH}" in \
      amd64) triple=x86_64-unknown-linux-gnu; package=gcc-x86-64-linux-gnu ;; \
      arm64) triple=aarch64-unknown-linux-gnu; package=gcc-aarch64-linux-gnu ;; \
      *) echo "there is no build for ${TARGETARCH}: use linux/amd64 or linux/arm64" >&2; exit 1 ;; \
    esac; \
    echo "${triple}" > /triple; \
    rustup target add "${triple}"; \
    if [ "$(dpkg --print-architecture)" != "${TARGETARCH}" ]; then \
      apt-get update; \
      apt-get install --yes --no-install-recommends "${package}" "libc6-dev-${TARGETARCH}-cross"; \
      rm -rf /var/lib/apt/lists/*; \
    fi
# Some arm64 kernels have pages of 64 KiB; an allocator that was built for smaller ones ends at its start there.
ENV JEMALLOC_SYS_WITH_LG_PAGE=16

# Dependencies: a layer of its own, which changes with the manifests alone. The packages are empty in it.
COPY .cargo/config.toml .cargo/
COPY Cargo.toml Cargo.lock ./
COPY crates/agent/Cargo.toml crates/agent/
COPY crates/clouddriver/Cargo.toml crates/clouddriver/
COPY crates/core/Cargo.toml crates/core/
COPY crates/plugin/Cargo.toml crates/plugin/
COPY crates/runtime/Cargo.toml crates/runtime/
COPY crates/store/Cargo.toml crates/store/
COPY crates/testkit/Cargo.toml crates/testkit/
# A cache for each platform: Cargo's lock is not in it, so that two platforms that are built at once would write to one.
RUN --mount=type=cache,id=kubesvc-registry-${TARGETARCH},target=/usr/local/cargo/registry,sharing=locked \
    set -eu; \
    mkdir -p src/bin tests/it benches; \
    for package in . crates/*; do mkdir -p "${package}/src"; echo '//! Empty.' > "${package}/src/lib.rs"; done; \
    for program in src/bin/kubesvc-operator src/bin/kubesvc-agent src/bin/kubectl-kubesvc tests/it/main benches/accounts \
      benches/cache benches/requests crates/core/build crates/runtime/build crates/store/build; do \
      printf '//! Empty.\n\nfn main() {}\n' > "${program}.rs"; \
    done; \
    cargo build --release --locked --bins --target "$(cat /triple)"

COPY . .
# The empty packages were built later than the sources were written. What is copied from here has no time of its own, so that
# the same programs make the same layers.
RUN --mount=type=cache,id=kubesvc-registry-${TARGETARCH},target=/usr/local/cargo/registry,sharing=locked \
    set -eu; \
    find src crates -name '*.rs' -exec touch {} +; \
    triple="$(cat /triple)"; \
    cargo build --release --locked --bins --target "${triple}"; \
    cd "target/${triple}/release"; \
    install -D -t /out/usr/local/bin kubesvc-operator kubesvc-agent kubectl-kubesvc; \
    install -D -m 644 -t /out/usr/share/doc/kubesvc /src/LICENSE; \
    install -d /out/var/lib/kubesvc; \
    cd /src; \
    sh packaging/notices.sh /out/usr/share/doc/kubesvc/THIRD-PARTY-NOTICES "${triple}"; \
    find /out -exec touch --no-dereference --date @0 {} +

FROM ${RUNTIME_BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
# Where the sources are, such as https://github.com/OWNER/kubesvc.
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="kubesvc" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.url="${SOURCE}" \
      org.opencontainers.image.description="Registers many Kubernetes clusters for Spinnaker: operator, agent and kubectl plugin" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/usr/ /usr/
COPY --from=build --chown=65532:65532 /out/var/lib/kubesvc/ /var/lib/kubesvc/
USER 65532:65532
# Where a relative database path leads.
WORKDIR /var/lib/kubesvc
# Operator: REST, health alone, agents, API of accounts. Agent: health, metrics.
EXPOSE 7002 7003 9091 6443 8082 8008
CMD ["kubesvc-operator"]
