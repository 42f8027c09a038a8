use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig};
use serde_json::{Value, json};

use super::credential::KubeconfigUser;
use super::formats::{About, render};
use super::{AddressArguments, OutputFormat, commented, https};
use crate::account_api::AccountPaths;
use crate::account_kubeconfig::{Door, NamedAccount, named};
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
    let key = AccountPaths { namespace: "spinnaker".to_owned(), name: name.to_owned() };
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
    credential: &KubeconfigUser,
    address: &AddressArguments,
) -> String {
    let spec = json!({"kubeconfig": {"serviceAccount": true}, "accountName": "Prod one",
        "namespaces": ["shop", "jobs"], "permissions": {"READ": ["team-a"]}});
    let about = About { credential, address, door };
    render(output, &about, &[account("prod")], &[object("spinnaker", "prod", &spec)]).expect("it is rendered")
}

#[test]
fn argo_cd_is_given_a_cluster_secret() {
    let credential = KubeconfigUser::ServiceAccount {
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
    let text = rendered(OutputFormat::Flux, &door(), &KubeconfigUser::Own, &AddressArguments::default());
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
    let credential = KubeconfigUser::TokenFile("/var/token".to_owned());
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

#[test]
fn an_address_is_https() {
    assert_eq!(https("https://c:6443/"), Ok("https://c:6443".to_owned()));
    for text in ["http://c", "c:6443", "", "https://", "https://c?a=b"] {
        assert!(https(text).is_err(), "{text}");
    }
}
