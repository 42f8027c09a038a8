# The three programs in one image: `docker build -t kubesvc:0.1.0 .`
# A container says which one it is: `command: [kubesvc-operator]` or `command: [kubesvc-agent]`.
# The kubectl plugin is there to be copied out: `docker cp "$(docker create kubesvc:0.1.0)":/usr/local/bin/kubectl-kubesvc .`
#
# The bases are named by tag. Where images are released, give what was reviewed: `docker buildx imagetools inspect TAG`
# prints the digest, and `--build-arg BUILD_BASE=…@sha256:…` and RUNTIME_BASE take it.
ARG BUILD_BASE=rust:1.95-bookworm
# glibc of the same Debian, certificates of public authorities, and the user 65532; no shell, no package manager.
ARG RUNTIME_BASE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_BASE} AS build
WORKDIR /src
COPY . .
# Dependencies and objects stay in the caches; the programs are copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bins \
    && install -D -t /out/usr/local/bin target/release/kubesvc-operator target/release/kubesvc-agent target/release/kubectl-kubesvc \
    && install -D -m 644 -t /out/usr/share/doc/kubesvc LICENSE \
    && install -d /out/var/lib/kubesvc

FROM ${RUNTIME_BASE}
COPY --from=build /out/usr/ /usr/
COPY --from=build --chown=65532:65532 /out/var/lib/kubesvc/ /var/lib/kubesvc/
USER 65532:65532
# Where a relative database path leads.
WORKDIR /var/lib/kubesvc
EXPOSE 7002 8082 9091
CMD ["kubesvc-operator"]
