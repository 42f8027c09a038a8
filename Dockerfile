# The three programs in one image: `docker build -t kubesvc .`
# A container says which one it is: `command: [kubesvc-operator]` or `command: [kubesvc-agent]`.
# The kubectl plugin is there to be copied out: `docker run --rm --entrypoint cat kubesvc /usr/local/bin/kubectl-kubesvc`.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Dependencies and objects stay in the caches; the programs are copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bins \
    && install -D -t /out target/release/kubesvc-operator target/release/kubesvc-agent target/release/kubectl-kubesvc

FROM debian:bookworm-slim
# The authorities for clusters whose certificates are signed by public ones.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65532 -g 65532 /var/lib/kubesvc
COPY --from=build /out/ /usr/local/bin/
COPY LICENSE /usr/share/doc/kubesvc/LICENSE
USER 65532:65532
# Where a relative database path leads.
WORKDIR /var/lib/kubesvc
EXPOSE 7002 8082 9091
CMD ["kubesvc-operator"]
