//! The environment overrides files, and flags override both.

use super::Files;
use crate::operator::settings::{OperatorSettings, load};
use kubesvc_runtime::config::{ConfigError, Loaded, Origin, UnknownKeys};

fn with(yaml: &str, env: &[(&str, &str)]) -> Result<Loaded<OperatorSettings>, ConfigError> {
    let files = Files::new(&[("c.yml", yaml)]);
    let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    load(&[files.path("c.yml")], &env, UnknownKeys::Error)
}

#[test]
fn a_variable_lies_over_the_files() {
    let env = [
        ("SERVER_PORT", "1"),
        ("SERVER_MAXBODYBYTES", "1MB"),
        ("KUBESVC_DATABASE_URL", "mysql://h/d"),
        ("KUBESVC_WATCHNAMESPACES", "a,b"),
        ("KUBESVC_DYNAMICACCOUNTS_ENABLED", "false"),
        ("KUBESVC_GRPC_SERVER_ADDRESS", ""),
        ("KUBESVC_LOADBALANCER", "not read, so not looked at"),
    ];
    let loaded = with("server.port: 2\nkubesvc.grpc.server.address: h\n", &env).expect("valid");
    let s = &loaded.settings;
    assert_eq!((s.server.port, s.server.max_body_bytes), (1, 1 << 20));
    assert_eq!(&*s.database_url, "mysql://h/d");
    assert_eq!(s.watch_namespaces, ["a", "b"]);
    assert!(!s.dynamic_accounts.enabled);
    assert_eq!(s.grpc.address, "h", "an empty variable sets nothing");
    assert_eq!(loaded.origin("server.port"), Some(&Origin::Environment("SERVER_PORT".into())));
}

#[test]
fn a_wrong_variable_is_named_without_its_secret() {
    let message = with("", &[("SERVER_PORT", "many"), ("KUBESVC_DATABASE_URL", "hunter2")])
        .map(|_| ())
        .expect_err("two mistakes")
        .to_string();
    assert!(message.contains("environment SERVER_PORT: `server.port` is \"many\", but must be"), "{message}");
    assert!(
        message.contains("environment KUBESVC_DATABASE_URL: `kubesvc.database.url` is a value not shown")
    );
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn what_kubernetes_sets_for_a_service_is_passed_over() {
    let loaded = with("", &[("SERVER_PORT", "tcp://10.0.0.1:80")]).expect("valid");
    assert_eq!(loaded.settings.server.port, 7002);
    assert_eq!(
        loaded.warnings,
        ["ignored the environment variable SERVER_PORT, which Kubernetes set for a Service"]
    );
}

#[test]
fn the_agent_has_its_own_variables() {
    let files = Files::new(&[]);
    let env = |name: &str| match name {
        "CLOUDDRIVER_GRPC" => Some("hub:1".to_owned()),
        "ZONEID" => Some("z".to_owned()),
        "KUBERNETES_KUBECONFIGFOLDERS" => Some("/a,/b".to_owned()),
        _ => None,
    };
    let s = kubesvc_agent::settings::load(files.root(), &env, UnknownKeys::Error).expect("valid").settings;
    assert_eq!((s.hub.grpc.as_str(), s.zone_id.as_deref()), ("hub:1", Some("z")));
    assert_eq!(s.kubeconfig_folders, ["/a", "/b"].map(std::path::PathBuf::from));
}

#[test]
fn a_flag_lies_over_everything() {
    let mut loaded = with("server.port: 2", &[("SERVER_PORT", "1")]).expect("valid");
    loaded.set("server.port", "3", "--port").expect("a port");
    loaded.set("kubesvc.watch-namespaces", "a,b", "--watch").expect("namespaces");
    assert_eq!(loaded.settings.server.port, 3);
    assert_eq!(loaded.settings.watch_namespaces, ["a", "b"]);
    assert_eq!(loaded.origin("server.port"), Some(&Origin::Flag("--port".into())));

    let wrong = loaded.set("server.port", "x", "--port").expect_err("no port").to_string();
    assert!(wrong.starts_with("flag --port: `server.port` is \"x\", but must be"), "{wrong}");
    for key in ["kubesvc.loadBalancer", "nothing", "logging.fields.a", "", "a..b"] {
        assert!(loaded.set(key, "x", "--f").is_err(), "{key} is not a scalar setting that is read");
    }
    assert_eq!(loaded.settings.server.port, 3, "a refused flag changes nothing");
}
