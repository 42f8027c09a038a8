use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::credential::Credential;
use super::formats::{About, render};
use super::merge::{Outcome, into_file, merged};
use super::{AddressArguments, OutputFormat, commented, https};
use crate::account_api::AccountKey;
use crate::account_kubeconfig::{Door, NamedAccount, named};
use crate::arguments::CommandError;
use crate::resources::AccountObject;
use kubesvc_runtime::terminal::format;

fn door() -> Door {
    let cluster = Cluster {
        server: Some("https://api.example.com:6443/".to_owned()),
        certificate_authority_data: Some("Q0E=".to_owned()),
        ..Cluster::default()
    };
    let user = AuthInfo { token: Some("my-token".to_owned().into()), ..AuthInfo::default() };
    Door { cluster, user_name: "jane".to_owned(), user }
}

fn account(name: &str) -> NamedAccount {
    let key = AccountKey { namespace: "spinnaker".to_owned(), name: name.to_owned() };
    NamedAccount { entry: name.to_owned(), key }
}

fn object(namespace: &str, name: &str, spec: &Value) -> AccountObject {
    let raw = json!({"apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    AccountObject { account: serde_json::from_value(raw.clone()).expect("an account"), raw }
}

const PROXY: &str = "/apis/proxy.kubesvc.io/v1alpha1/namespaces/spinnaker/accounts";

#[test]
fn a_kubeconfig_has_a_context_for_each_account_and_the_callers_user() {
    let text = format::yaml(&door().kubeconfig(&[account("prod")]).expect("entries")).expect("YAML");
    let wanted = format!(
        "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: \"https://api.example.com:6443{PROXY}/prod/proxy\"
  name: prod
contexts:
- context:
    cluster: prod
    user: jane
  name: prod
current-context: prod
kind: Config
users:
- name: jane
  user:
    token: my-token
"
    );
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
    assert_eq!(read(&text), read(&wanted), "{text}");
    let several = door().kubeconfig(&[account("a"), account("b")]).expect("entries");
    assert_eq!(several["current-context"], "");
    assert_eq!(several["contexts"].as_array().map(Vec::len), Some(2));
    assert_eq!(several["users"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_kubeconfig_of_the_aggregated_door_says_what_kubectl_proxy_would_serve() {
    let text = format::yaml(&door().kubeconfig(&[account("prod")]).expect("entries")).expect("YAML");
    let said = commented(true, text.clone());
    assert!(said.starts_with("# ") && said.contains("--append-server-path"), "{said}");
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
    assert_eq!(read(&said), read(&text));
    assert_eq!(commented(false, text.clone()), text, "the gateway's own door has no other cluster behind it");
    assert_eq!(commented(true, "{}".to_owned()), "{}", "JSON has no comments");
}

#[test]
fn a_login_program_is_copied_as_it_is() {
    let exec: ExecConfig = serde_json::from_value(json!({"apiVersion": "client.authentication.k8s.io/v1",
        "command": "/opt/login", "args": ["--a", "b"], "env": [{"name": "N", "value": "v"}], "interactiveMode": "Never"}))
    .expect("a login program");
    let user = AuthInfo { exec: Some(exec), ..AuthInfo::default() };
    let entry = Door { user, ..door() }.user_entry().expect("an entry");
    assert_eq!(
        entry["user"],
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/opt/login",
            "args": ["--a", "b"], "env": [{"name": "N", "value": "v"}], "interactiveMode": "Never"}})
    );
}

#[test]
fn entries_are_named_as_objects_with_the_namespace_where_it_is_needed() {
    let spec = json!({"kubeconfig": {"serviceAccount": true}});
    let objects = [("a", "x"), ("b", "x"), ("a", "y")].map(|(ns, name)| object(ns, name, &spec));
    let names: Vec<_> = named(&objects, "k-").into_iter().map(|one| one.entry).collect();
    assert_eq!(names, ["k-a/x", "k-b/x", "k-y"]);
}

fn rendered(
    output: OutputFormat,
    door: &Door,
    credential: &Credential,
    address: &AddressArguments,
) -> String {
    let spec = json!({"kubeconfig": {"serviceAccount": true}, "accountName": "Prod one",
        "namespaces": ["shop", "jobs"], "permissions": {"READ": ["team-a"]}});
    let about = About { credential, address, door };
    render(output, &about, &[account("prod")], &[object("spinnaker", "prod", &spec)]).expect("it is rendered")
}

#[test]
fn argo_cd_is_given_a_cluster_secret() {
    let credential = Credential::ServiceAccount {
        name: "argocd/kubesvc".to_owned(),
        token: "t".to_owned().into(),
        expires: "2027-01-01T00:00:00Z".to_owned(),
    };
    let text = rendered(OutputFormat::Argocd, &door(), &credential, &AddressArguments::default());
    assert!(text.starts_with("# Clusters of Argo CD."), "{text}");
    assert!(
        text.contains("# The credential is a token of service account argocd/kubesvc that expires"),
        "{text}"
    );
    assert!(text.contains("--server"), "an address of its own is suggested: {text}");
    let secret: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(secret["metadata"]["labels"]["argocd.argoproj.io/secret-type"], "cluster");
    assert_eq!(secret["stringData"]["server"], format!("https://api.example.com:6443{PROXY}/prod/proxy"));
    assert_eq!(secret["stringData"]["namespaces"], "shop,jobs");
    assert_eq!(secret["stringData"]["clusterResources"], "true");
    let config = secret["stringData"]["config"].as_str().expect("JSON in it");
    assert_eq!(
        serde_json::from_str::<Value>(config).expect("JSON"),
        json!({"bearerToken": "my-token", "tlsClientConfig": {"insecure": false, "caData": "Q0E="}})
    );
}

#[test]
fn flux_is_given_a_secret_with_a_kubeconfig() {
    let text = rendered(OutputFormat::Flux, &door(), &Credential::Own, &AddressArguments::default());
    assert!(text.contains("# spec.kubeConfig.secretRef.name: kubesvc-prod"), "{text}");
    assert!(text.contains("# The credential is your own"), "{text}");
    let secret: Value = serde_saphyr::from_str(&text).expect("YAML");
    let kubeconfig = Kubeconfig::from_yaml(secret["stringData"]["value"].as_str().expect("text"));
    assert_eq!(kubeconfig.expect("a kubeconfig").current_context.as_deref(), Some("prod"));
}

#[test]
fn clouddriver_is_given_accounts_with_their_settings() {
    let door = Door {
        cluster: Cluster { server: Some("https://g:6443".to_owned()), ..Cluster::default() },
        user: AuthInfo { token_file: Some("/var/token".to_owned()), ..AuthInfo::default() },
        user_name: "kubesvc:/var/token".to_owned(),
    };
    let address =
        AddressArguments { gateway: Some("https://g:6443".to_owned()), ..AddressArguments::default() };
    let credential = Credential::TokenFile("/var/token".to_owned());
    let text = rendered(OutputFormat::Clouddriver, &door, &credential, &address);
    assert!(!text.contains("rather give --gateway"), "it is given: {text}");
    let settings: Value = serde_saphyr::from_str(&text).expect("YAML");
    let entry = &settings["kubernetes"]["accounts"][0];
    assert_eq!((&entry["name"], &entry["namespaces"]), (&json!("Prod one"), &json!(["shop", "jobs"])));
    assert_eq!(entry["permissions"], json!({"READ": ["team-a"]}));
    let kubeconfig = entry["kubeconfigContents"].as_str().expect("text");
    assert!(
        kubeconfig.contains("tokenFile: /var/token") && kubeconfig.contains("https://g:6443/apis/"),
        "{text}"
    );
}

const THEIRS: &str = "apiVersion: v1
kind: Config
current-context: home
preferences: {colors: true}
clusters:
- {name: home, cluster: {server: 'https://home', certificate-authority: ca.crt, other: field}}
users:
- {name: jane, user: {exec: {command: login, apiVersion: client.authentication.k8s.io/v1}}}
contexts:
- {name: home, context: {cluster: home, user: jane, namespace: spinnaker}}
";

#[test]
fn merging_adds_entries_once_and_keeps_everything_else() {
    let first = merged(THEIRS, &door(), false, &[account("prod")]).expect("it is merged");
    assert_eq!(first.outcomes, [Outcome::Added]);
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
    let (before, after) = (read(THEIRS), read(&first.text));
    for key in ["current-context", "preferences", "users", "kind", "apiVersion"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(before["clusters"][0], after["clusters"][0]);
    assert_eq!(before["contexts"][0], after["contexts"][0]);
    assert_eq!(after["contexts"][1], json!({"name": "prod", "context": {"cluster": "prod", "user": "jane"}}));
    let again = merged(&first.text, &door(), false, &[account("prod")]).expect("it is merged");
    assert!(!again.is_changed && again.outcomes == [Outcome::Unchanged]);
    // What the user set in a context of ours stays.
    let set = first.text.replace("user: jane\n  name: prod", "user: jane\n    namespace: shop\n  name: prod");
    assert_ne!(set, first.text, "{set}");
    let other = Door { user_name: "john".to_owned(), ..door() };
    let changed = merged(&set, &other, true, &[account("prod"), account("b")]).expect("it is merged");
    assert_eq!(changed.outcomes, [Outcome::Changed, Outcome::Added]);
    let after = read(&changed.text);
    assert_eq!(
        after["contexts"][1]["context"],
        json!({"cluster": "prod", "user": "john", "namespace": "shop"})
    );
    assert_eq!(after["users"].as_array().map(Vec::len), Some(2));
}

#[test]
fn entries_of_others_are_never_replaced() {
    let refused =
        merged(THEIRS, &door(), false, &[account("home")]).expect_err("it is another cluster").to_string();
    assert!(refused.contains("\"home\"") && refused.contains("--prefix"), "{refused}");
    for text in ["[]", "a: b: c", "kind: Secret", "clusters: 5"] {
        assert!(merged(text, &door(), false, &[account("prod")]).is_err(), "{text}");
    }
}

#[test]
fn a_value_that_would_read_otherwise_is_refused() {
    let odd =
        THEIRS.replace("exec: {command: login, apiVersion: client.authentication.k8s.io/v1}", "token: 1e5");
    let refused =
        merged(&odd, &door(), false, &[account("prod")]).expect_err("the token would change").to_string();
    assert!(refused.contains("\"jane\" of users"), "{refused}");
}

#[test]
fn a_file_is_replaced_as_a_whole_and_keeps_its_rights() {
    let folder = tempfile::tempdir().expect("a folder");
    let (real, link) = (folder.path().join("real"), folder.path().join("config"));
    fs::write(&real, THEIRS).expect("a file");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("our own file");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    into_file(&link, &door(), false, &[account("prod")]).expect("it is merged");
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    assert_eq!(fs::metadata(&real).expect("a file").permissions().mode() & 0o777, 0o640);
    assert!(fs::read_to_string(&real).expect("a file").contains("/accounts/prod/proxy"));
    let new = folder.path().join("new/config");
    into_file(&new, &door(), true, &[account("prod")]).expect("it is made");
    assert_eq!(fs::metadata(&new).expect("a file").permissions().mode() & 0o777, 0o600);
    // The lock of another program.
    fs::write(folder.path().join("config.lock"), "").expect("a lock");
    let refused = into_file(&link, &door(), false, &[account("b")]);
    assert!(matches!(refused, Err(CommandError::Failed(why)) if why.contains("config.lock")));
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").flatten().map(|one| one.file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn an_address_is_https() {
    assert_eq!(https("https://c:6443/"), Ok("https://c:6443".to_owned()));
    for text in ["http://c", "c:6443", "", "https://", "https://c?a=b"] {
        assert!(https(text).is_err(), "{text}");
    }
}

fn entry_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,3}",
        "[ -~]{1,8}",
        Just("yes".to_owned()),
        Just("0123".to_owned()),
        Just("1e5".to_owned())
    ]
}

proptest! {
    /// Whatever a kubeconfig has: it is there after a merge, in the same order, and a second merge changes nothing.
    #[test]
    fn what_was_there_stays(
        theirs in prop::collection::btree_map(entry_name(), ("[ -~]{0,12}", prop::option::of("[ -~]{0,8}")), 0..6),
        ours in prop::collection::btree_set("[a-z]{1,3}", 1..4),
    ) {
        let entries = |list: &str, field: &str| -> Vec<Value> {
            theirs.iter().map(|(name, (value, extra))| {
                let content = match list {
                    "clusters" => json!({"server": format!("https://{value}")}),
                    "users" => json!({"token": value}),
                    _ => json!({"cluster": format!("{name}-of-theirs"), "user": name, "namespace": extra}),
                };
                json!({"name": name, field: content})
            }).collect()
        };
        let before = json!({"apiVersion": "v1", "kind": "Config", "current-context": theirs.keys().next().cloned().unwrap_or_default(),
            "clusters": entries("clusters", "cluster"), "users": entries("users", "user"),
            "contexts": entries("contexts", "context")});
        let text = format::yaml(&before).expect("YAML");
        let accounts: Vec<_> = ours.iter().map(|name| account(name)).collect();
        match merged(&text, &door(), false, &accounts) {
            Err(_) => prop_assert!(ours.iter().any(|name| theirs.contains_key(name))),
            Ok(first) => {
                let after: Value = serde_saphyr::from_str(&first.text).expect("YAML");
                for list in ["clusters", "users", "contexts"] {
                    let kept = before[list].as_array().expect("a list");
                    prop_assert_eq!(&after[list].as_array().expect("a list")[..kept.len()], &kept[..]);
                }
                prop_assert_eq!(&after["current-context"], &before["current-context"]);
                let again = merged(&first.text, &door(), false, &accounts).expect("it merges again");
                prop_assert!(!again.is_changed);
            }
        }
    }
}
