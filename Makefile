# Everything a person does here. `make` says what there is.

export RUST_BACKTRACE ?= 1
CARGO ?= cargo
# One build for tests and demo: the crash points are in it and do nothing unless asked. It is that of the whole workspace, because
# Cargo chooses features of dependencies by what is built together, and would build most of it twice.
FEATURES := failpoints
BUILD := $(CARGO) build --workspace --features $(FEATURES) --quiet
PROGRAMS := $(or $(CARGO_TARGET_DIR),target)/debug
CLIPPY ?= $(CARGO) clippy --workspace --all-targets --features $(FEATURES) --quiet -- -D warnings
# Runs a program of Cargo in a network, with mounts and processes of its own, which needs root.
INSIDE := --config 'target."cfg(unix)".runner=["sh","tests/node/inside.sh"]'
# What no benchmark measures need not wait for link-time optimisation.
UNLINKED := CARGO_PROFILE_BENCH_LTO=off CARGO_PROFILE_BENCH_CODEGEN_UNITS=16
# Tests that other targets run: with programs built in another way, with what only these targets see to, or for as long as they are told.
ELSEWHERE := (floods|added_time|openapi_check|skew|mutations|full|walks)::|ten_busy_minutes|half_an_hour|[[:space:]]node$$
DENY_VERSION := 0.20.2
DENY_FOLDER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubesvc/cargo-deny-$(DENY_VERSION)
DENY := $(DENY_FOLDER)/bin/cargo-deny

.DEFAULT_GOAL := help
.PHONY: help demo demo-replicas demo-spinnaker test test-all faults floods random-faults skew fuzz model bench lint fmt crds openapi docs controlplane databases pooler galera judge controllers helm informer promtool checkers java clouddriver nginx node-programs node node-test openapi-check image-check build clean

help: ## Say what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: controlplane ## Two real clusters, the real programs, three accounts; stays up until Ctrl-C
	$(BUILD) --bins --example demo
	@$(PROGRAMS)/examples/demo

demo-replicas: controlplane databases ## Three replicas, two agents; the leader is killed and the account stays ACTIVE
	$(BUILD) --bins --example demo_replicas
	@$(PROGRAMS)/examples/demo_replicas

demo-spinnaker: controlplane databases clouddriver ## Accounts appear in a Clouddriver, deploy, and leave it, also while it is down
	$(BUILD) --bins --example demo_spinnaker
	@$(PROGRAMS)/examples/demo_spinnaker

test: controlplane databases judge controllers helm informer promtool checkers clouddriver nginx ## The tests that continuous integration runs: pure, database, real control planes, faults
	@CARGO=$(CARGO) sh tests/run.sh

test-all: controlplane databases pooler galera judge controllers helm informer promtool checkers clouddriver nginx node-programs ## Every test: each story on each database, PgBouncer, Galera, each crash point alone, the long faults, floods, REST against its description, the large models, a node (hours; root)
	@CARGO=$(CARGO) LIMIT=14400 PROPTEST_CASES=600 WITHOUT='$(ELSEWHERE)' sh tests/run.sh --include-ignored
	$(MAKE) --no-print-directory floods openapi-check model node-test

faults: controlplane databases informer helm ## The long faults: every crash point on every database, ten minutes without a database, informers of a killed agent, floods
	$(CARGO) test --workspace --features $(FEATURES) --quiet --test it -- --ignored --nocapture --test-threads 4 --skip random_faults:: --skip ten_busy_minutes faults:: transparency::
	$(MAKE) --no-print-directory floods

floods: controlplane databases ## What others notice of floods, what /credentials adds to a call, and ten busy minutes without a database, with optimised programs and nothing beside them
	$(UNLINKED) $(CARGO) test --profile bench --workspace --features $(FEATURES) --quiet --test it -- --ignored --nocapture --test-threads 1 floods:: added_time:: ten_busy_minutes

random-faults: controlplane databases informer helm ## An hour of random faults on three replicas, half on each server (KUBESVC_SEED, KUBESVC_FAULT_SECONDS)
	$(CARGO) test --workspace --features $(FEATURES) --quiet --test it -- --ignored --nocapture --test-threads 1 random_faults::

skew: controlplane databases helm ## Operator and agent beside those of the last tag, or of EARLIER=<revision>, which it builds first; each is upgraded
	KUBESVC_EARLIER_PROGRAMS=$$(EARLIER=$(EARLIER) CARGO=$(CARGO) sh tests/earlier.sh) && export KUBESVC_EARLIER_PROGRAMS && \
	$(CARGO) test --workspace --features $(FEATURES) --quiet --test it -- --ignored --nocapture skew::

fuzz: ## Random changes of hostile responses, operations, manifests, frames and paths, a minute a target (KUBESVC_FUZZ_SECONDS, KUBESVC_SEED)
	$(CARGO) test -p kubesvc-agent --quiet --lib scrub::tests::mutations -- --ignored --nocapture
	$(CARGO) test -p kubesvc-core --quiet --lib operations::tests::mutations -- --ignored --nocapture
	PROPTEST_CASES=50000 $(CARGO) test -p kubesvc-core --quiet --lib requests::
	PROPTEST_CASES=20000 $(CARGO) test --features $(FEATURES) --quiet --lib hub::requests::model

model: ## Every order of steps of the protocol, in larger worlds than `make test` has; a table of what was seen
	$(UNLINKED) $(CARGO) test --profile bench --features $(FEATURES) --quiet --lib -- --ignored --nocapture hub::model_checker hub::caching::delivery_model

bench: controlplane databases ## Ratios against raw API writes and a bare client; results go to benches/results.md
	$(CARGO) bench --bench accounts
	$(CARGO) bench --bench cache
	$(CARGO) bench --bench requests

lint: $(DENY) ## Format, clippy, licences and versions of dependencies
	$(CARGO) fmt --all --check
	$(CLIPPY)
	$(DENY) --log-level error check --hide-inclusion-graph licenses bans sources
	@sh tests/advisories.sh $(DENY)

$(DENY):
	@echo "building cargo-deny $(DENY_VERSION) once, into $(DENY_FOLDER) (some minutes)"
	@CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --debug --quiet --locked --version $(DENY_VERSION) --root $(DENY_FOLDER) cargo-deny

fmt: ## Format the code
	$(CARGO) fmt --all

crds: ## Write crds/, and their copy in the chart, from the Rust types
	$(BUILD) --bins && $(PROGRAMS)/kubesvc-operator crds --directory crds
	cp crds/*.yaml charts/kubesvc/files/crds/

openapi: ## Write docs/openapi.json from the routes
	$(BUILD) --bins && $(PROGRAMS)/kubesvc-operator openapi > docs/openapi.json

docs: ## Write the tables of docs/settings.md and the charts' schemas of settings from the code
	UPDATE_DOCS=1 $(CARGO) test --workspace --features $(FEATURES) --quiet --test it -- docs::the_tables drift::the_charts

openapi-check: controlplane helm ## Drive every REST call with schemathesis (installed once in the cache folder, pinned; needs Python and PyPI)
	KUBESVC_SCHEMATHESIS=$$(sh tests/openapi/schemathesis.sh) && export KUBESVC_SCHEMATHESIS && \
	$(CARGO) test --workspace --features $(FEATURES) --quiet --test it -- --ignored --nocapture openapi_check::

controlplane: ## Build etcd, kube-apiserver and kubectl once (three minutes; kept in a cache folder)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane

pooler: ## See to PgBouncer too, which one test of test-all needs
	@sh tests/databases.sh pooler

galera: ## See to Galera too, which one test of test-all needs
	@sh tests/databases.sh galera

databases: ## See to the programs of MariaDB and PostgreSQL for the tests (Debian: installs them)
	@sh tests/databases.sh

judge: ## Build what judges objects as Argo CD and Flux do (half a minute; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane judge

controllers: ## Build kube-controller-manager, which rolls out in the tests (some minutes; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane controllers

helm: ## Build Helm, which installs the charts in the tests (four minutes; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane helm

informer: ## Build what uses clusters by client-go in the tests: informers, and credentials of GitOps tools (two minutes; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane informer

promtool: ## Build promtool, which checks alerts and runs their unit tests (two minutes; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane promtool

checkers: ## Build kubeconform, actionlint and krew's validator, which check renders, the release workflow and the plugin's manifest (a minute; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane checkers

java: ## See to Java and Maven for the tests (Debian: installs them)
	@sh tests/java.sh

clouddriver: java ## Build what stands in for Spinnaker's Clouddriver in the tests, and a config server (two minutes; kept in the same place)
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane clouddriver && $(PROGRAMS)/examples/controlplane config-server

nginx: ## See to nginx for the tests of routes (Debian: installs it)
	@sh tests/nginx.sh

node-programs: controlplane controllers ## Build kubelet, kube-scheduler, kube-proxy and a DNS (eight minutes; kept in the same place), and install containerd (Debian, root)
	@sh tests/node/inside.sh check
	@$(BUILD) --example controlplane && $(PROGRAMS)/examples/controlplane node

node: node-programs ## A node with real pods and the image of kubesvc, until Ctrl-C; needs root, leaves nothing behind
	$(BUILD) --bins --example node
	@sh tests/node/inside.sh $(PROGRAMS)/examples/node

node-test: node-programs databases helm ## Install, upgrade, restart, drain, restore and remove on nodes with real pods, as the pages say (thirteen minutes); needs root
	$(BUILD) --bins --example node
	$(CARGO) test --workspace --features $(FEATURES) --quiet --test node --no-run
	$(CARGO) test --workspace --features $(FEATURES) --quiet $(INSIDE) --test node -- --ignored --nocapture --test-threads 1

image-check: ## Build the image, and start each program in it read-only and without capabilities; needs Docker; before a release
	@sh packaging/image-check.sh

build: ## Build the three programs for release
	$(CARGO) build --release --bins

clean: ## Remove what was built here
	$(CARGO) clean
