//! The operator's settings, the precedence of files, and what is ignored.

use std::path::PathBuf;
use std::time::Duration;

use super::{Files, error, operator};
use crate::operator::settings::{
    Approval, ClusterMode, ClusterSettings, OperationsAuth, OperatorSettings, load,
};
use kubesvc_runtime::config::{LogFormat, LogLevel, UnknownKeys};
use kubesvc_runtime::listen::connection_limits::AddressLimits;

fn defaults() -> OperatorSettings {
    load(&[], &|_| None, UnknownKeys::Error).expect("the defaults load").settings
}

#[test]
fn defaults_are_the_documented_ones() {
    let s = defaults();
    assert_eq!((s.server.address.as_str(), s.server.port, s.server.max_body_bytes), ("*", 7002, 8 << 20));
    assert_eq!(s.server.health_port, None);
    assert_eq!(s.server.limits, AddressLimits { per_address: 256, exempt: vec![] });
    assert_eq!((s.grpc.address.as_str(), s.grpc.port), ("*", 9091));
    assert!(s.grpc.health_service_enabled);
    assert_eq!(s.grpc.max_inbound_message_size, 4 << 20);
    assert_eq!(s.grpc.limits, AddressLimits::default());
    assert_eq!(&*s.database_url, "sqlite://kubesvc.db");
    assert!(s.watch_namespaces.is_empty() && s.secrets.folders.is_empty());
    assert_eq!(s.operation_wait, Duration::from_secs(30));
    let o = &s.operations;
    assert_eq!((o.auth, o.max_retries, s.read_wait), (OperationsAuth::Required, 3, Duration::from_secs(10)));
    assert_eq!((o.max_rows, o.kept_for.as_secs(), o.max_result_label), (1_000_000, 7 * 86_400, 255));
    assert_eq!(o.purge.to_string(), "0 0 0 * * 0");
    let d = &s.dynamic_accounts;
    assert_eq!((d.enabled, d.max_retries, d.retry_frequency), (true, 3, Duration::from_secs(5)));
    assert_eq!((d.retry_multiplier, d.retry_max_delay), (2.0, Duration::from_secs(300)));
    assert_eq!((d.orphan_grace, d.namespace.as_deref()), (Duration::from_secs(30), None));
    assert_eq!((s.kubernetes.qps, s.kubernetes.burst, s.kubernetes.registration_qps), (200, 400, 50));
    assert_eq!((s.agents.approval, s.agents.offers, s.secrets.noop), (Approval::Auto, true, true));
    assert_eq!(
        (s.accounts.agent_sources, s.accounts.operator_files),
        (vec!["*".to_owned()], vec!["*".to_owned()])
    );
    let cluster = ClusterSettings {
        kubeconfig_file: None,
        verify_ssl: true,
        namespace: None,
        http_port_name: "http".to_owned(),
        service_name_prefix: "spin-clouddriver".to_owned(),
        fail_fast: true,
        use_dns: false,
        domain_name: "cluster.local".to_owned(),
    };
    assert_eq!((s.cluster_mode, s.cluster.pod_domain()), (ClusterMode::Local, None));
    assert_eq!(s.cluster, cluster);
    assert_eq!((s.logging.level, s.logging.format), (LogLevel::Info, LogFormat::Auto));
    assert!(s.logging.fields.is_empty());
    let keepalive = s.grpc.keepalive.expect("pings are sent");
    assert_eq!((keepalive.every.as_secs(), keepalive.timeout.as_secs()), (20, 20));
    assert!(s.heartbeat.enabled);
    assert_eq!((s.heartbeat.initial_delay.as_secs(), s.heartbeat.period.as_secs()), (0, 60));
}

#[test]
fn replicas_look_for_one_another_unless_the_database_serves_only_one() {
    let mode = |yaml: &str| {
        let loaded = operator(yaml).expect("valid");
        (loaded.settings.cluster_mode, loaded.warnings)
    };
    const SERVER: &str = "kubesvc.database.url: postgres://h/d\n";
    assert_eq!(mode(""), (ClusterMode::Local, vec![]));
    assert_eq!(mode(SERVER), (ClusterMode::Kubernetes, vec![]));
    assert_eq!(mode(&format!("{SERVER}kubesvc.cluster: local")), (ClusterMode::Local, vec![]));
    let (taken, notes) = mode(&format!("{SERVER}kubesvc.cluster: database"));
    assert_eq!(taken, ClusterMode::Kubernetes);
    assert!(matches!(notes.as_slice(), [one] if one.contains("treated as kubernetes")), "{notes:?}");
    assert_eq!(mode("kubesvc.cluster: local"), (ClusterMode::Local, vec![]));
    for several in ["kubernetes", "database"] {
        let refused = error(operator(&format!("kubesvc.cluster: {several}")));
        let (origin, why) = refused.split_once(' ').expect("a place and a text");
        assert_eq!(origin, "c.yml:1:");
        assert!(why.starts_with("`kubesvc.cluster` is for several replicas"), "{refused}");
        assert!(why.contains("kubesvc.database.url names SQLite"), "{refused}");
    }
}

#[test]
fn pings_are_paced_as_set_and_zero_means_none() {
    let keepalive = |security: &str| {
        let yaml = format!("kubesvc.grpc.server.security: {{ {security} }}");
        let pings = operator(&yaml).expect("valid").settings.grpc.keepalive;
        pings.map(|pings| (pings.every.as_secs(), pings.timeout.as_secs()))
    };
    assert_eq!(keepalive("keepAliveHeartbeatSeconds: 7, KeepAliveTimeOutSeconds: 3"), Some((7, 3)));
    assert_eq!(keepalive("keepAliveHeartbeatSeconds: 0"), None);
    assert_eq!(keepalive("keepAliveTimeOutSeconds: 0"), Some((20, 86_400)), "no answer is waited for");
}

#[test]
fn heartbeats_have_a_unit_and_bounds() {
    let heartbeat = |yaml: &str| operator(&format!("kubesvc.heartbeat: {{ {yaml} }}"));
    let s =
        heartbeat("enabled: false, initialDelay: 2, period: 3, periodUnit: MINUTES").expect("valid").settings;
    assert!(!s.heartbeat.enabled);
    assert_eq!((s.heartbeat.initial_delay.as_secs(), s.heartbeat.period.as_secs()), (120, 180));
    let s = heartbeat("period: 1500, periodUnit: milliseconds").expect("valid").settings;
    assert_eq!(s.heartbeat.period, Duration::from_millis(1500));
    for (yaml, key, read) in [
        ("period: 5, periodUnit: NANOSECONDS", "kubesvc.heartbeat.period", "5ns"),
        ("period: 400, periodUnit: DAYS", "kubesvc.heartbeat.period", "34560000s"),
        ("initialDelay: 9223372036854775807, periodUnit: DAYS", "kubesvc.heartbeat.initialDelay", "s"),
    ] {
        let problem = error(heartbeat(yaml));
        assert!(problem.contains(key) && problem.contains(read) && problem.contains("365 days"), "{problem}");
        assert!(problem.starts_with("c.yml:1"), "{problem}");
    }
}

#[test]
fn every_setting_that_is_read_takes_effect() {
    let yaml = r#"
server:
  { address: 127.0.0.1, port: 0, maxBodyBytes: 1MB, health.port: 7003, limits: { perAddress: 0, exempt: [10.0.0.0/8] },
    hosts: [hub, "localhost:7002"], cors.allowedOrigins: ["https://deck.example.com"] }
kubesvc:
  grpc.server: { address: "[::1]", port: 1, healthServiceEnabled: false, maxInboundMessageSize: 16MB, limits: { perAddress: 256, exempt: [fd00::/8] } }
  database.url: postgres://u:p@h/d
  watchNamespaces: [a, b]
  secrets: { folders: [/creds, /run/more], noop: false }
  cache: { operationWaitMs: 1500, onDemandQuickWaitMs: 700 }
  operations: { auth: None, retry.maxRetries: 0, history.maxRows: 10 }
  jobs.operation-history.purge: { weeks: 2, cron: "0 30 4 ? * MON-FRI" }
  ops.processTime.metric.result.maxLength: 8
  dynamicAccounts:
    enabled: false
    maxRetries: 0
    retryFrequencySeconds: 7
    retryMultiplier: 1
    retryMaxDelaySeconds: 60
    orphanGraceSeconds: 0
    namespace: spinnaker
  kubernetes: { qps: 0, burst: 1, registrationQps: 0 }
  agents: { approval: MANUAL, offers: false }
  accounts: { agentSources: [., team], operatorFiles: [] }
  cluster: Kubernetes
  cluster-kubernetes:
    kubeconfigFile: /k
    verifySsl: false
    namespace: n
    httpPortName: rest
    clouddriverServiceNamePrefix: clouddriver
    failFast: false
    useDNS: true
    domainName: example.org
logging: { level: Warning, format: json, fields: { team: x, app.name: y } }
"#;
    let s = operator(yaml).expect("valid").settings;
    assert_eq!(s.server.health_port, Some(7003));
    let exempt = vec!["10.0.0.0/8".parse().expect("a network")];
    assert_eq!(s.server.limits, AddressLimits { per_address: 0, exempt });
    assert_eq!(s.server.hosts, ["hub", "localhost:7002"]);
    assert_eq!(s.server.allowed_origins, ["https://deck.example.com"]);
    assert_eq!(
        (s.server.address.as_str(), s.server.port, s.server.max_body_bytes),
        ("127.0.0.1", 0, 1 << 20)
    );
    assert_eq!((s.grpc.address.as_str(), s.grpc.port), ("[::1]", 1));
    assert!(!s.grpc.health_service_enabled);
    assert_eq!(s.grpc.max_inbound_message_size, 16 << 20);
    let exempt = vec!["fd00::/8".parse().expect("a network")];
    assert_eq!(s.grpc.limits, AddressLimits { per_address: 256, exempt });
    assert_eq!(&*s.database_url, "postgres://u:p@h/d");
    assert_eq!(s.watch_namespaces, ["a", "b"]);
    assert_eq!(s.secrets.folders, [PathBuf::from("/creds"), PathBuf::from("/run/more")]);
    assert_eq!(s.operation_wait, Duration::from_millis(1500));
    let o = &s.operations;
    assert_eq!((o.auth, o.max_retries, s.read_wait), (OperationsAuth::None, 0, Duration::from_millis(700)));
    assert_eq!((o.max_rows, o.kept_for.as_secs(), o.max_result_label), (10, 14 * 86_400, 8));
    assert_eq!(o.purge.to_string(), "0 30 4 ? * MON-FRI");
    let d = &s.dynamic_accounts;
    assert_eq!((d.enabled, d.max_retries, d.retry_frequency), (false, 0, Duration::from_secs(7)));
    assert_eq!((d.retry_multiplier, d.retry_max_delay), (1.0, Duration::from_secs(60)));
    assert_eq!((d.orphan_grace, d.namespace.as_deref()), (Duration::ZERO, Some("spinnaker")));
    assert_eq!((s.kubernetes.qps, s.kubernetes.burst, s.kubernetes.registration_qps), (0, 1, 0));
    assert_eq!((s.agents.approval, s.agents.offers, s.secrets.noop), (Approval::Manual, false, false));
    assert_eq!(s.accounts.agent_sources, [".", "team"]);
    assert!(s.accounts.operator_files.is_empty(), "an empty list counts as set");
    let cluster = ClusterSettings {
        kubeconfig_file: Some(PathBuf::from("/k")),
        verify_ssl: false,
        namespace: Some("n".to_owned()),
        http_port_name: "rest".to_owned(),
        service_name_prefix: "clouddriver".to_owned(),
        fail_fast: false,
        use_dns: true,
        domain_name: "example.org".to_owned(),
    };
    assert_eq!((s.cluster_mode, s.cluster.pod_domain()), (ClusterMode::Kubernetes, Some("example.org")));
    assert_eq!(s.cluster, cluster);
    assert_eq!((s.logging.level, s.logging.format), (LogLevel::Warn, LogFormat::Json));
    let fields: Vec<_> = s.logging.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(fields, [("app.name", "y"), ("team", "x")]);
}

#[test]
fn a_later_file_wins_setting_by_setting() {
    let files = Files::new(&[
        ("a.yml", "kubesvc:\n  watchNamespaces: [a, b]\n  dynamicAccounts: {enabled: true, maxRetries: 9}\n"),
        ("b.yml", "KUBESVC.dynamic-accounts.enabled: false\nkubesvc.watch_namespaces: []\nserver.port: 0\n"),
        ("c.yml", "server:\n  port:\nkubesvc:\n"),
    ]);
    let loaded = files.operator(&["a.yml", "b.yml", "c.yml"], UnknownKeys::Error).expect("valid");
    let s = &loaded.settings;
    assert!(!s.dynamic_accounts.enabled, "false lies over true");
    assert_eq!(s.dynamic_accounts.max_retries, 9, "what the later file does not name stays");
    assert!(s.watch_namespaces.is_empty(), "an empty list lies over a list");
    assert_eq!(s.server.port, 0, "0 is set, and null leaves it");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn fields_of_the_log_are_merged_by_name() {
    let files =
        Files::new(&[("a.yml", "logging.fields: {a: 1, b: 2}"), ("b.yml", "logging: {fields: {b: 3}}")]);
    let s = files.operator(&["a.yml", "b.yml"], UnknownKeys::Error).expect("valid").settings;
    let fields: Vec<_> = s.logging.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(fields, [("a", "1"), ("b", "3")]);
}

#[test]
fn the_rest_of_a_clouddriver_file_is_named_in_one_line() {
    let yaml = "
spinnaker: {extensibility: {plugins: {}}}
kubernetes: {enabled: true, accounts: [{name: x}]}
spring.datasource.url: x
server: {port: 7002, ssl: {enabled: false}, tomcat.threads.max: 3}
logging:
  level: {root: debug, com.netflix: INFO}
  config: x.xml
armory:
  diagnostics: {enabled: false}
  kubesvc: {cache: {operationWaitMs: 5}}
'/**': x
redis: 5
";
    let loaded = operator(yaml).expect("valid");
    assert_eq!(loaded.settings.operation_wait, Duration::from_millis(5));
    assert_eq!(loaded.settings.logging.level, LogLevel::Debug, "Spring's root level is the level");
    assert_eq!(
        loaded.warnings,
        ["c.yml: ignored settings of other programs: /**, armory.diagnostics, kubernetes, \
          logging.config, logging.level.com.netflix, redis, server.tomcat.threads.max, \
          spinnaker, spring"]
    );
}

#[test]
fn unknown_keys_of_ours_are_errors_or_warnings() {
    let cases = [
        (
            "kubesvc.databas.url: x",
            "c.yml:1: unknown setting `kubesvc.databas.url`; did you mean `kubesvc.database.url`?",
        ),
        (
            "kubesvc:\n  grcp:\n    server.port: 1",
            "c.yml:2: unknown setting `kubesvc.grcp`; did you mean `kubesvc.grpc`?",
        ),
        (
            "armory.kubesvc:\n  operationWaitMs: 1",
            "c.yml:2: unknown setting `kubesvc.operationWaitMs`; did you mean `kubesvc.cache.operationWaitMs`?",
        ),
        ("kubesvc: {zebra: 1}", "c.yml:1: unknown setting `kubesvc.zebra`"),
        (
            "kubesvc: {server.port: 1}",
            "c.yml:1: unknown setting `kubesvc.server.port`; did you mean `server.port`?",
        ),
        (
            "kubesvc.runtime.accounts.prod.onlySpinnaker: true",
            "c.yml:1: unknown setting `kubesvc.runtime.accounts.prod.onlySpinnaker`; did you mean `kubesvc.runtime.accounts.*.onlySpinnakerManaged`?",
        ),
    ];
    for (yaml, want) in cases {
        assert_eq!(error(operator(yaml)), want, "{yaml}");
        let files = Files::new(&[("c.yml", yaml)]);
        let loaded = files.operator(&["c.yml"], UnknownKeys::Warn).expect("only a warning");
        assert_eq!(loaded.warnings, [want], "{yaml}");
        assert_eq!(loaded.settings, defaults(), "{yaml}");
    }
}

#[test]
fn what_is_not_read_is_accepted_with_a_warning() {
    let yaml = "
kubesvc:
  loadBalancer: mn
  operations.database.scan: {enabled: true, batch: {size: 3}}
  grpc.server.security: {enabled: false, privateKeyPassword: ''}
";
    let loaded = operator(yaml).expect("valid");
    assert_eq!(loaded.settings, defaults());
    let want = [
        "c.yml:3: `kubesvc.loadBalancer` has no effect: there is one way in which accounts are spread over agents",
        "c.yml:4: `kubesvc.operations.database.scan.*` has no effect: operations reach their replica directly, \
         not by scanning a table (and 1 more places)",
    ];
    assert_eq!(loaded.warnings, want);
}

#[test]
fn a_wait_between_tries_is_never_shorter_than_the_first() {
    let s = operator("kubesvc.dynamicAccounts.retryFrequencySeconds: 900").expect("valid").settings;
    assert_eq!(s.dynamic_accounts.retry_max_delay, Duration::from_secs(900));
}

#[test]
fn an_empty_file_sets_nothing() {
    for yaml in ["", "\n\n", "# nothing\n", "---\n", "---\n...\n", "null\n", "\u{feff}", "{}"] {
        let loaded = operator(yaml).expect("valid");
        assert_eq!(loaded.settings, defaults(), "{yaml:?}");
        assert!(loaded.warnings.is_empty(), "{yaml:?}");
    }
}

#[test]
fn anchors_and_merge_keys_work_as_in_spring() {
    let yaml = "
x-common: &common
  maxRetries: 7
  enabled: false
kubesvc:
  dynamicAccounts:
    <<: *common
    enabled: true
  kubernetes: {qps: &n 12, burst: *n}
";
    let s = operator(yaml).expect("valid").settings;
    assert_eq!((s.dynamic_accounts.max_retries, s.dynamic_accounts.enabled), (7, true));
    assert_eq!((s.kubernetes.qps, s.kubernetes.burst), (12, 12));
}

#[test]
fn a_schedule_that_is_none_is_refused_with_an_example() {
    for cron in ["@weekly", "0 0 * * 0", "0 0 0 30 2 *", "0 0 25 * * *"] {
        let message = error(operator(&format!("kubesvc.jobs.operation-history.purge.cron: '{cron}'")));
        assert!(message.contains("must be six fields") && message.contains("0 0 0 * * 0"), "{message}");
    }
}

#[test]
fn a_certificate_of_the_gateway_needs_its_key() {
    let settings = |yaml: &str| operator(yaml).expect(yaml).settings.gateway;
    assert_eq!(settings("kubesvc.gateway.server.port: 7443"), None, "it is off");
    let gateway = settings("kubesvc.gateway: {enabled: true, server: {port: 7443}}").expect("it is on");
    assert_eq!((gateway.address.as_str(), gateway.port, gateway.tls_files()), ("*", 7443, None));
    let with_files = "kubesvc.gateway: {enabled: true, tls: {certificateFile: /c, keyFile: /k}}";
    let files = settings(with_files).expect("it is on").tls_files();
    assert_eq!(files, Some(("/c".into(), "/k".into())));
    for (given, missing) in [("certificateFile", "keyFile"), ("keyFile", "certificateFile")] {
        let error = error(operator(&format!("kubesvc.gateway: {{enabled: true, tls.{given}: /f}}")));
        assert!(error.contains(&format!("kubesvc.gateway.tls.{missing}")), "{error}");
    }
    let unknown = error(operator("kubesvc.gateway.auth: none"));
    assert!(unknown.contains("kubesvc.gateway.auth"), "{unknown}");
}

#[test]
fn the_api_of_accounts_bounds_the_connections_of_an_address_unless_it_is_exempt() {
    let gateway = |limits: &str| {
        let yaml = format!("kubesvc.gateway: {{enabled: true, server.limits: {{{limits}}}}}");
        operator(&yaml).expect("good").settings.gateway.expect("it is on").limits
    };
    assert_eq!(gateway(""), AddressLimits { per_address: 256, exempt: vec![] });
    let exempt = vec!["10.0.0.0/8".parse().expect("a network")];
    let limits = gateway("perAddress: 0, exempt: [10.0.0.0/8]");
    assert_eq!(limits, AddressLimits { per_address: 0, exempt });
}
