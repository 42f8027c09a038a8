//! How the agent paces itself, and the settings that have two spellings.

use std::time::Duration;

use super::{agent, error};

#[test]
fn the_documented_defaults_hold() {
    let s = agent("").expect("valid").settings;
    assert_eq!(s.hub.backoff.base, Duration::from_secs(1));
    assert_eq!((s.hub.backoff.multiplier, s.hub.backoff.jitter), (1.6, 0.2));
    assert_eq!(s.hub.backoff.max, Duration::from_secs(120));
    assert_eq!(s.hub.reconnect, Duration::from_secs(5));
    assert_eq!((s.hub.ping_every, s.hub.ping_timeout), (Duration::from_secs(20), Duration::from_secs(20)));
    assert_eq!(s.hub.idle_timeout, Duration::ZERO);
    assert_eq!((s.metrics_port, s.dynamic_accounts), (None, true));
}

#[test]
fn what_is_set_holds() {
    let yaml = "
clouddriver:
  backoff: {baseDelay: 5000000, multiplier: 2, jitter: 0, maxDelay: 1000000000}
  keepAliveHeartbeatSeconds: 0
  keepAliveTimeOutSeconds: 0
  keepAliveOperationSeconds: 7
kubernetes.reconnectTimeoutMs: 10
prometheus: {enabled: true, port: 0}
";
    let s = agent(yaml).expect("valid").settings;
    assert_eq!((s.hub.backoff.base, s.hub.backoff.max), (Duration::from_millis(5), Duration::from_secs(1)));
    assert_eq!((s.hub.ping_every, s.hub.ping_timeout), (Duration::ZERO, Duration::from_secs(20)));
    assert_eq!((s.hub.idle_timeout, s.hub.reconnect), (Duration::from_secs(7), Duration::from_millis(10)));
    assert_eq!(s.metrics_port, Some(0));
    assert_eq!(agent("prometheus.enabled: true").expect("valid").settings.metrics_port, Some(8008));
}

#[test]
fn dynamic_accounts_have_two_spellings_that_must_agree() {
    for (yaml, want) in [
        ("dynamicAccountsEnabled: false", false),
        ("dynamicAccounts.enabled: false", false),
        ("dynamicAccountsEnabled: true", true),
        ("dynamicAccountsEnabled: false\ndynamicAccounts.enabled: false", false),
    ] {
        assert_eq!(agent(yaml).expect(yaml).settings.dynamic_accounts, want, "{yaml}");
    }
    assert_eq!(
        error(agent("dynamicAccounts.enabled: true\ndynamicAccountsEnabled: false")),
        "armory-agent.yml:2: `dynamicAccountsEnabled` is false although dynamicAccounts.enabled, \
         its newer spelling, is true; keep one of the two"
    );
}

#[test]
fn what_differs_between_two_states_of_the_files_is_named() {
    let of = |yaml: &str| agent(yaml).expect(yaml);
    let before = of("server.port: 1\nkubernetes.accounts: [{name: a, serviceAccount: true}]");
    assert!(
        before
            .differences(&of("server: {port: 1}\nkubernetes.accounts[0]: {name: a, serviceAccount: yes}"))
            .is_empty()
    );
    let after = of(
        "server.port: 2\nzoneId: z\nlogging.fields.a: b\nkubernetes.accounts: [{name: b, serviceAccount: true}]",
    );
    assert_eq!(
        before.differences(&after),
        ["kubernetes.accounts", "logging.fields.*", "server.port", "zoneId"]
    );
    assert_eq!(before.differences(&of("server.port: 1")), ["kubernetes.accounts"]);
}
