//! Types and bounds.

use super::{agent, error, operator};
use kubesvc_runtime::config::LogLevel;

#[test]
fn wrong_values_name_file_line_key_what_was_read_and_what_is_allowed() {
    let cases = [
        (
            "server.limits.exempt: [10.0.0.0/33]",
            "c.yml:1: `server.limits.exempt` is a list of 1, but must be a list of addresses and networks, such as 10.0.0.0/8",
        ),
        (
            "server.hosts: [\"*\"]",
            "c.yml:1: `server.hosts` is a list of 1, but must be a list of host names, each with or without a port",
        ),
        (
            "server.cors.allowedOrigins: [\"*\"]",
            "c.yml:1: `server.cors.allowedOrigins` is a list of 1, but must be a list of origins, such as https://deck.example.com (no *)",
        ),
        (
            "server.port: 70000",
            "c.yml:1: `server.port` is \"70000\", but must be a whole number (a port; 0 lets the system choose) from 0 to 65535",
        ),
        (
            "server: {port: -1}",
            "c.yml:1: `server.port` is \"-1\", but must be a whole number (a port; 0 lets the system choose) from 0 to 65535",
        ),
        (
            "\nkubesvc.cache.operationWaitMs: 30s",
            "c.yml:2: `kubesvc.cache.operationWaitMs` is \"30s\", but must be a whole number of milliseconds from 1 to 86400000",
        ),
        (
            "kubesvc.cache.operationWaitMs: 0",
            "c.yml:1: `kubesvc.cache.operationWaitMs` is \"0\", but must be a whole number of milliseconds from 1 to 86400000",
        ),
        (
            "kubesvc.cache.operationWaitMs: [1]",
            "c.yml:1: `kubesvc.cache.operationWaitMs` is a list of 1, but must be a whole number of milliseconds from 1 to 86400000",
        ),
        (
            "kubesvc.dynamicAccounts.enabled: maybe",
            "c.yml:1: `kubesvc.dynamicAccounts.enabled` is \"maybe\", but must be true or false",
        ),
        (
            "kubesvc.dynamicAccounts.enabled: {a: b}",
            "c.yml:1: `kubesvc.dynamicAccounts.enabled` is a group of settings (`a` …), but must be true or false",
        ),
        (
            "kubesvc.dynamicAccounts.retryMultiplier: .nan",
            "c.yml:1: `kubesvc.dynamicAccounts.retryMultiplier` is \".nan\", but must be a number from 1 to 100",
        ),
        (
            "kubesvc.dynamicAccounts.namespace: A_b",
            "c.yml:1: `kubesvc.dynamicAccounts.namespace` is \"A_b\", but must be a namespace (at most 63 lower-case letters, digits and hyphens)",
        ),
        (
            "kubesvc.grpc.server.maxInboundMessageSize: 4MX",
            "c.yml:1: `kubesvc.grpc.server.maxInboundMessageSize` is \"4MX\", but must be a size such as 512KB or 4MB, from 3211264 to 1073741824 bytes",
        ),
        (
            "kubesvc.agents.approval: sometimes",
            "c.yml:1: `kubesvc.agents.approval` is \"sometimes\", but must be one of auto, manual",
        ),
        (
            "kubesvc.cluster: redis",
            "c.yml:1: `kubesvc.cluster` is \"redis\", but must be one of local, kubernetes, database",
        ),
        (
            "kubesvc.watchNamespaces: [a, [b]]",
            "c.yml:1: `kubesvc.watchNamespaces` is a list with a list of 1 in line 1, but must be a list of namespaces, or [\"*\"] for all",
        ),
        ("kubesvc.grpc: 5", "c.yml:1: `kubesvc.grpc` is \"5\", but must be a group of settings"),
        ("kubesvc:\n- a\n", "c.yml:1: `kubesvc` is a list of 1, but must be a group of settings"),
        (
            "server.address: a b",
            "c.yml:1: `server.address` is \"a b\", but must be an address, a host name, or * for all addresses",
        ),
        (
            "logging.level: loud",
            "c.yml:1: `logging.level` is \"loud\", but must be one of panic, fatal, error, warn, warning, info, debug, trace",
        ),
        (
            "logging.fields.a: \"x\\ny\"",
            "c.yml:1: `logging.fields.a` is \"x\\ny\", but must be text on one line of at most 1024 characters",
        ),
        (
            "server.address: \"${HOST}\"",
            "c.yml:1: `server.address` is \"${HOST}\", but must be an address, a host name, or * for all addresses; `${…}` is not filled in",
        ),
        (
            "logging.fields.a: \"${HOST}\"",
            "c.yml:1: `logging.fields.a` is \"${HOST}\", but must be text on one line of at most 1024 characters; `${…}` is not filled in",
        ),
    ];
    for (yaml, want) in cases {
        assert_eq!(error(operator(yaml)), want, "{yaml}");
    }
}

#[test]
fn a_secret_is_never_in_a_message() {
    let cases = [
        "kubesvc.database.url: jdbc:mysql://u:hunter2@h/d",
        "kubesvc.database.url: {hunter2: hunter2}",
        "kubesvc.database.url: [hunter2]",
        "kubesvc.database.url: mysql://u:${hunter2}@h/d",
    ];
    for yaml in cases {
        let message = error(operator(yaml));
        assert!(
            message.starts_with(
                "c.yml:1: `kubesvc.database.url` is a value not shown here, but must be an address"
            ),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let message = error(operator("server.port: x\nkubesvc: {cach: 1, cache: {operationWaitMs: y}}\n"));
    assert_eq!(message.lines().count(), 3, "{message}");
    let many: String = (0..50).map(|i| format!("kubesvc.zzz{i}: 1\n")).collect();
    let message = error(operator(&many));
    assert_eq!(message.lines().count(), 21);
    assert!(message.ends_with("\nand 30 more problems"), "{message}");
}

#[test]
fn flags_and_numbers_may_be_text() {
    for (text, want) in [
        ("true", true),
        ("'yes'", true),
        ("On", true),
        ("1", true),
        ("false", false),
        ("no", false),
        ("OFF", false),
        ("\"0\"", false),
    ] {
        let s = operator(&format!("kubesvc.dynamicAccounts.enabled: {text}")).expect(text).settings;
        assert_eq!(s.dynamic_accounts.enabled, want, "{text}");
    }
    for (text, want) in [("1.6", 1.6), ("'2'", 2.0), ("1e1", 10.0)] {
        let s = operator(&format!("kubesvc.dynamicAccounts.retryMultiplier: {text}")).expect(text).settings;
        assert_eq!(s.dynamic_accounts.retry_multiplier, want, "{text}");
    }
}

#[test]
fn sizes() {
    let cases = [
        ("3211264", 3_211_264),
        ("3211264B", 3_211_264),
        ("3136KB", 3_211_264),
        ("4MB", 4 << 20),
        ("4 mb", 4 << 20),
        ("1GB", 1 << 30),
    ];
    for (text, want) in cases {
        let s = operator(&format!("kubesvc.grpc.server.maxInboundMessageSize: {text}")).expect(text).settings;
        assert_eq!(s.grpc.max_inbound_message_size, want, "{text}");
    }
    // The hello of an agent that holds many accounts can be this large.
    assert_eq!(kubesvc_core::wire::MIN_MESSAGE_BYTES, 3_211_264);
    for text in
        ["64KB", "3211263", "-1MB", "4M", "4.5MB", "MB", "''", "1TB", "99999999999TB", "18446744073709551616"]
    {
        assert!(
            error(operator(&format!("kubesvc.grpc.server.maxInboundMessageSize: {text}")))
                .starts_with("c.yml:1: "),
            "{text}"
        );
    }
}

#[test]
fn addresses() {
    for good in ["'*'", "0.0.0.0", "127.0.0.1", "'::'", "'[::1]'", "localhost", "hub.svc.cluster.local"] {
        operator(&format!("server.address: {good}")).expect(good);
    }
    for bad in ["''", "'a:80'", "http://x", "a/b", "'[::1'", "'* *'"] {
        assert!(
            error(operator(&format!("server.address: {bad}"))).contains("an address, a host name"),
            "{bad}"
        );
    }
}

#[test]
fn lists_may_be_one_text_with_commas() {
    let cases =
        [("'*'", vec!["*"]), ("['*']", vec!["*"]), ("a, b,", vec!["a", "b"]), ("''", vec![]), ("[]", vec![])];
    for (text, want) in cases {
        assert_eq!(
            operator(&format!("kubesvc.watchNamespaces: {text}")).expect(text).settings.watch_namespaces,
            want
        );
    }
}

#[test]
fn text_stays_as_it_was_written() {
    for (text, want) in [
        ("007", "007"),
        ("1.10", "1.10"),
        ("yes", "yes"),
        ("0x1F", "0x1F"),
        ("'a b'", "a b"),
        ("2024-01-01", "2024-01-01"),
    ] {
        assert_eq!(agent(&format!("zoneId: {text}")).expect(text).settings.zone_id.as_deref(), Some(want));
    }
    assert!(error(agent(&format!("zoneId: {}", "z".repeat(256)))).contains("at most 255 characters"));
    assert!(error(agent("zoneId: \"a\\tb\"")).contains("`zoneId` is \"a\\tb\""));
}

#[test]
fn levels_of_logs() {
    use LogLevel::{Debug, Error, Info, Trace, Warn};
    let cases = [
        ("panic", Error),
        ("FATAL", Error),
        ("error", Error),
        ("warn", Warn),
        ("Warning", Warn),
        ("INFO", Info),
        ("debug", Debug),
        ("trace", Trace),
    ];
    for (text, want) in cases {
        assert_eq!(
            agent(&format!("logging.level: {text}")).expect(text).settings.logging.level,
            want,
            "{text}"
        );
    }
}

#[test]
fn a_leader_gives_up_before_others_take_its_lease() {
    let times = |duration: u32, deadline: u32, retry: u32| {
        operator(&format!(
            "kubesvc.leaderElection: {{leaseDurationSeconds: {duration}, renewDeadlineSeconds: {deadline}, \
             retryPeriodSeconds: {retry}}}"
        ))
    };
    let shortest = times(3, 2, 1).expect("these fit").settings.leader_election;
    assert_eq!(shortest.duration, std::time::Duration::from_secs(3));
    for (duration, deadline, retry, wrong) in [
        (15, 15, 2, "renewDeadlineSeconds"),
        (15, 10, 9, "retryPeriodSeconds"),
        (6, 2, 2, "retryPeriodSeconds"),
    ] {
        let problem = times(duration, deadline, retry).expect_err("they do not fit").to_string();
        assert!(problem.contains(wrong), "{problem}");
    }
}
