//! What the settings leave open to anyone who can reach a port: one log line each at startup, and a metric.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tracing::warn;

use super::settings::{Approval, OperationsAuth, OperatorSettings};
use crate::hub::IdentityMode;
use crate::rest::RestAuthMode;
use kubesvc_runtime::tls::clients::ClientAuth;

const DATABASE_PLAINTEXT: &str = "database-plaintext";

/// One exposure that settings can close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exposure {
    /// Its name, used as the label of the metric.
    name: &'static str,
    is_open: bool,
    /// What is exposed, and how to close it.
    what: &'static str,
}

/// All exposures. `foreign`: whether accounts of other namespaces than the operator's own are watched.
pub(super) fn exposures(settings: &OperatorSettings, foreign: bool) -> [Exposure; 9] {
    let any = |namespaces: &[String]| foreign && namespaces.iter().any(|one| one == "*");
    let door = |name, is_open, what| Exposure { name, is_open, what };
    let accounts = &settings.accounts;
    [
        door(
            "hub-plaintext",
            settings.grpc.tls.is_none(),
            "agents receive credentials in plaintext on kubesvc.grpc.server.port; set kubesvc.grpc.server.security, or put a \
             proxy with TLS in front of it",
        ),
        door(
            "hub-open",
            settings.agent_identities != Some(IdentityMode::Bound),
            if settings.grpc.tls.as_ref().is_some_and(|tls| tls.client_auth == ClientAuth::Required) {
                "everyone with a certificate that kubesvc.grpc.server.security.trustCertCollection accepts can pose as an agent \
                 of any zone; set kubesvc.grpc.auth.mode: bound, or let it have only authorities of agents"
            } else if settings.agents.approval == Approval::Manual {
                "everyone who can reach kubesvc.grpc.server.port can pose as an approved agent whose id and zone are known; \
                 set kubesvc.grpc.auth.mode: bound, or let only agents reach it"
            } else {
                "everyone who can reach kubesvc.grpc.server.port can pose as an agent of any zone; set kubesvc.grpc.auth.mode: \
                 bound, or let only agents reach it and set kubesvc.agents.approval: manual"
            },
        ),
        door(
            "offers",
            settings.agents.offers,
            "an account without a zone goes to a zone whose agents offer to take it; set kubesvc.agents.offers: false",
        ),
        door(
            "agent-sources",
            any(&accounts.agent_sources) || any(&accounts.operator_files),
            "accounts of every watched namespace may use files and service accounts of agents, and files of the operator; \
             set kubesvc.accounts.agentSources and operatorFiles",
        ),
        door(
            "rest-plaintext",
            settings.server.tls.is_none(),
            "REST receives credentials in plaintext on server.port; set server.ssl, or put a proxy with TLS in front of it",
        ),
        door(
            "rest-open",
            settings.rest_auth.mode != RestAuthMode::Enforce,
            "everyone who can reach server.port can read, change and delete accounts; set kubesvc.rest.auth.mode: enforce, or \
             let only trusted callers reach it",
        ),
        door(
            "operations",
            settings.operations.auth == OperationsAuth::None,
            "everyone who can reach server.port can change the cluster of every account; set kubesvc.operations.auth: required",
        ),
        door(
            "noop",
            settings.secrets.noop,
            "accounts may contain credentials in plaintext in their spec; set kubesvc.secrets.noop: false",
        ),
        door(
            DATABASE_PLAINTEXT,
            kubesvc_store::exposure(&settings.database_url).is_some_and(|database| database.may_be_plaintext),
            "connections to the database on another machine may be without TLS; require TLS in kubesvc.database.url",
        ),
    ]
}

/// Logs each open exposure. The database's is logged before it is opened, see [`kubesvc_store::exposure`].
pub(super) fn say(doors: &[Exposure]) {
    for Exposure { name, what, .. } in
        doors.iter().filter(|door| door.is_open && door.name != DATABASE_PLAINTEXT)
    {
        warn!(door = name, "open: {what} (docs/security.md)");
    }
}

/// Registers the metric `kubesvc_security_open`.
pub(super) fn register(doors: &[Exposure], registry: &mut Registry) {
    let open: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
    for door in doors {
        open.get_or_create(&[("door", door.name)]).set(i64::from(door.is_open));
    }
    registry.register("kubesvc_security_open", "Whether settings leave this open", open);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings;
    use kubesvc_runtime::config::UnknownKeys;
    use kubesvc_runtime::telemetry::metrics::Metrics;

    fn open(yaml: &str, foreign: bool) -> Vec<&'static str> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), yaml).expect("written");
        let loaded = settings::load(&[file.path().to_owned()], &|_| None, UnknownKeys::Error).expect("valid");
        let doors = exposures(&loaded.settings, foreign);
        doors.iter().filter(|door| door.is_open).map(|door| door.name).collect()
    }

    const ALWAYS_EXPOSED: [&str; 4] = ["hub-plaintext", "hub-open", "rest-plaintext", "rest-open"];

    #[test]
    fn the_defaults_leave_open_what_is_documented() {
        let all =
            ["hub-plaintext", "hub-open", "offers", "agent-sources", "rest-plaintext", "rest-open", "noop"];
        assert_eq!(open("", true), all);
        assert!(!open("", false).contains(&"agent-sources"), "all watched are the operator's own");
    }

    #[test]
    fn each_exposure_is_closed_by_its_setting() {
        let closed = "kubesvc: {agents.offers: false, secrets.noop: false, \
                      accounts: {agentSources: [.], operatorFiles: [team]}}";
        assert_eq!(open(closed, true), ALWAYS_EXPOSED);
        let tls = "kubesvc.grpc.server.security: {enabled: true, ownCertificate: true}";
        assert!(!open(tls, true).contains(&"hub-plaintext"));
        assert!(!open("kubesvc.grpc.auth.mode: bound", true).contains(&"hub-open"));
        assert!(open("kubesvc.grpc.auth.mode: log", true).contains(&"hub-open"));
        for (mode, is_open) in [("off", true), ("log", true), ("enforce", false)] {
            let open = open(&format!("kubesvc.rest.auth.mode: {mode}"), true);
            assert_eq!(open.contains(&"rest-open"), is_open, "{mode}");
        }
        assert!(open("kubesvc.operations.auth: none", true).contains(&"operations"));
        let half = "kubesvc: {agents.offers: false, secrets.noop: false, accounts: {agentSources: [.]}}";
        assert!(open(half, true).contains(&"agent-sources"), "the operator's files are open still");
    }

    #[test]
    fn a_database_is_open_where_nothing_asks_for_tls_beyond_this_machine() {
        let is_open =
            |url: &str| open(&format!("kubesvc.database.url: '{url}'"), true).contains(&"database-plaintext");
        for url in [
            "postgres://u:p@db.example/k",
            "postgres://u:p@db.example/k?sslmode=prefer",
            "mysql://u:p@10.0.0.1/k",
            "mysql://u:p@10.0.0.1/k?ssl-mode=DISABLED",
        ] {
            assert!(is_open(url), "{url}");
        }
        for url in [
            "sqlite:///var/lib/k.db",
            "postgres://u:p@localhost/k",
            "mysql://u:p@127.0.0.1/k",
            "postgres://u:p@[::1]/k",
            "postgres://u:p@db.example/k?sslmode=verify-full",
            "mysql://u:p@10.0.0.1/k?ssl-mode=REQUIRED",
        ] {
            assert!(!is_open(url), "{url}");
        }
    }

    #[test]
    fn the_metric_names_every_exposure() {
        let settings =
            settings::load(&[], &|_| None, UnknownKeys::Error).expect("the defaults load").settings;
        let mut metrics = Metrics::new();
        register(&exposures(&settings, true), &mut metrics.registry);
        let text = metrics.encode();
        assert!(text.contains("kubesvc_security_open{door=\"hub-plaintext\"} 1"), "{text}");
        assert!(text.contains("kubesvc_security_open{door=\"database-plaintext\"} 0"), "{text}");
    }
}
