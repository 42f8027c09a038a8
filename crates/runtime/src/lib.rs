//! What the operator, the agent and the plugin have in common: settings, background work, servers, output.
//!
//! | module | owns |
//! |---|---|
//! | [`background_tasks`] | the driver of all background work, and the list of what runs |
//! | [`work_queue`] | a bounded set of keys to look at again |
//! | [`waits`] | waits for a time, or for a state that another task brings about |
//! | [`watch_backoff`] | watches of the API server: restarts, delays, outages |
//! | [`rate_limit`] | the rate limit for writes to the API server, by urgency |
//! | [`limits`] | limits and rates of which each caller has its own |
//! | [`account_secret`] | the Secret that kubesvc writes for the kubeconfigs of one account |
//! | [`kube_access`] | requests to the operator's own API server: turn, time limit, crash points, class of an error |
//! | [`shutdown`] | signals, the end of the process, and tasks that must run until then |
//! | [`process`] | core dumps, the limit on open files, exit codes and last output |
//! | [`crash_points`] | named places at which the fault tests end the process |
//! | [`config`] | the settings of operator and agent |
//! | [`listen`] | servers of HTTP, with their bounds |
//! | [`grpc`] | the services between operator and agent, generated from `proto/` |
//! | [`telemetry`] | log lines, error texts, metrics |
//! | [`terminal`] | tables, colours, progress, JSON and YAML for people |

pub mod account_secret;
pub mod background_tasks;
pub mod config;
pub mod crash_points;
pub mod kube_access;
pub mod limits;
pub mod listen;
pub mod process;
pub mod proxy;
pub mod rate_limit;
pub mod request_channel;
pub mod shutdown;
/// What the programs report about themselves: log lines, error texts, metrics.
///
/// Only two things here are global: the subscriber that `tracing` keeps, set by [`logs::init`](telemetry::logs::init), and
/// whether the API server answers ([`outages`](telemetry::outages)), because everything that logs needs to know that.
pub mod telemetry {
    pub mod errors;
    pub mod logs;
    pub mod metrics;
    pub mod outages;
}
pub mod terminal;
pub mod tls;
pub mod waits;
pub mod watch_backoff;
pub mod work_queue;

/// The gRPC services between operator and agent, generated from `proto/`. Their messages are in
/// [`wire`](kubesvc_core::wire).
pub mod grpc {
    /// Descriptors of all services, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

    /// Services of the package `ops` of `proto/`.
    pub mod ops {
        #![expect(unused_qualifications, clippy::allow_attributes, reason = "generated")]
        include!(concat!(env!("OUT_DIR"), "/services/ops.rs"));
    }
    /// Services of the package `events` of `proto/`.
    pub mod events {
        #![expect(unused_qualifications, clippy::allow_attributes, reason = "generated")]
        include!(concat!(env!("OUT_DIR"), "/services/events.rs"));
    }
}
