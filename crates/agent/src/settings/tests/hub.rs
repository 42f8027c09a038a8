//! The timing of the agent's connection, and settings that have two spellings.

use std::time::Duration;

use super::{agent, error};

#[test]
fn the_documented_defaults_hold() {
    let s = agent("").expect("valid").settings;
    assert_eq!(s.hub.backoff.base, Duration::from_secs(1));
    assert_eq!((s.hub.backoff.multiplier, s.hub.backoff.jitter), (1.6, 0.2));
    assert_eq!(s.hub.backoff.max, Duration::from_secs(120));
    assert_eq!(s.reconnect, Duration::from_secs(5));
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
    assert_eq!((s.hub.idle_timeout, s.reconnect), (Duration::from_secs(7), Duration::from_millis(10)));
    assert_eq!(s.metrics_port, Some(0));
    assert_eq!(agent("prometheus.enabled: true").expect("valid").settings.metrics_port, Some(8008));
}

#[test]
fn an_empty_format_of_the_token_command_is_as_if_it_were_not_set() {
    let key = "clouddriver.auth.tokenCommand.format";
    agent(&format!("{key}: ''")).expect("not set");
    let refused = error(agent(&format!("{key}: xml")));
    assert!(refused.ends_with("must be one of raw, json, or empty"), "{refused}");
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

#[test]
fn the_hub_is_a_host_and_a_port() {
    for good in ["hub:9091", "hub.example.com:1", "10.0.0.1:65535", "'[::1]:9091'"] {
        assert_eq!(agent(&format!("clouddriver.grpc: {good}")).map(|_| ()), Ok(()), "{good}");
    }
    for bad in [
        "':'",
        "hub",
        "'hub:'",
        "':9091'",
        "hub:0",
        "hub:65536",
        "https://hub:9091",
        "u@hub:9091",
        "'hub: 9091'",
    ] {
        let message = error(agent(&format!("clouddriver.grpc: {bad}")));
        assert!(message.starts_with("armory-agent.yml:1: `clouddriver.grpc` is "), "{bad}: {message}");
        assert!(
            message.contains("must be an address and a port, such as hub.example.com:9091"),
            "{bad}: {message}"
        );
    }
}
