//! The operator of kubesvc, which registers and runs many Kubernetes clusters ("accounts") for Spinnaker. The programs
//! in `src/bin` start it, the agent (`crates/agent`) and the kubectl plugin (`crates/plugin`).
//!
//! The modules by layer, top down. A layer imports only from the layers below it, and siblings never import one
//! another (`tests/it/architecture.rs` enforces this):
//!
//! | layer | modules |
//! |---|---|
//! | composition root | `operator` |
//! | siblings | `controller`, `gateway`, `hub`, `migration`, `registration`, `replica_port`, `rest` |
//! | services | `account_caches`, `operations`, `source_accounts` |
//! | requests | `request_routing` |
//! | ports and adapters | `access`, `agent_tokens`, `certificates`, `clouddriver`, `connected_agents`, `credentials_sources`, `peers`, `leases`, `informers`, `secrets` |
//!
//! Below them are the packages in `crates/`, whose manifests say which of them uses which.

mod access;
mod account_caches;
mod agent_tokens;
mod certificates;
mod clouddriver;
mod connected_agents;
mod controller;
mod credentials_sources;
mod gateway;
mod hub;
mod informers;
mod leases;
mod migration;
mod operations;
mod operator;
mod peers;
mod registration;
mod replica_port;
mod request_routing;
mod rest;
mod secrets;
mod source_accounts;

pub use agent_tokens::{
    ALGORITHMS, AUDIENCE, AgentTokens, BearerSettings, BearerSetupError, BearerTokens, IssuerSettings,
    KeyLocation, KeySourceError, MIN_STATIC_TOKEN_BYTES, TokenError, TokenSecretNames,
};
pub use certificates::{Authority, LeafRequest, dns_names_in_der};
pub use credentials_sources::{
    CredentialsSource, CredentialsSources, FileError, NeededSources, ObjectKind, SourcePlace,
    SourceReadError, SourceSettings,
};
pub use hub::{
    AccountObjects, AdmissionClass, AgentObjects, AgentSummary, KnownAgent, KubeAgentObjects, Registration,
    RegistrationError, SessionRef,
};
pub use leases::Replicas;
pub use operator::{main, program_settings, settings};
