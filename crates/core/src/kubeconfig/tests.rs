#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret;

use super::*;

mod addresses;
mod good;
mod hostile_clusters;
mod hostile_files;
mod hostile_users;
mod keys;
mod properties;

const SERVER: &str = "server: 'https://api.example.com:6443'";
const TOKEN: &str = "token: CANARY-token";

/// A kubeconfig with one context `dev`, built from the contents of flow mappings for the cluster and the user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: dev\n\
         clusters: [{{name: east, cluster: {{{cluster}}}}}]\n\
         users: [{{name: bot, user: {{{user}}}}}]\n\
         contexts: [{{name: dev, context: {{cluster: east, user: bot}}}}]\n"
    )
}

fn with_cluster(cluster: &str) -> String {
    kubeconfig(cluster, TOKEN)
}

fn with_user(user: &str) -> String {
    kubeconfig(SERVER, user)
}

fn pem(label: &str, body: &str) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(body))
}

fn certificate() -> String {
    STANDARD.encode(pem("CERTIFICATE", "certificate"))
}

fn key() -> String {
    STANDARD.encode(pem("PRIVATE KEY", "CANARY-key"))
}

fn vetted(text: &str) -> VettedKubeconfig {
    match vet(text.as_bytes(), None) {
        Ok(vetted) => vetted,
        Err(refusal) => panic!("{refusal}\n{text}"),
    }
}

fn refused(text: &str) -> KubeconfigError {
    match vet(text.as_bytes(), None) {
        Ok(vetted) => panic!("taken: {vetted:?}\n{text}"),
        Err(refusal) => refusal,
    }
}

/// Whether a text leaks any of the secrets that the tests plant.
fn leaks(text: &str) -> bool {
    // CANARY as plain text and base64-encoded at each of the three offsets, everything the helpers encode, and PEM.
    ["CANARY", "Q0FOQVJZ", "NBTkFSW", "DQU5BUl", "-----BEGIN P", &key(), &certificate()]
        .iter()
        .any(|mark| text.contains(mark))
}

/// Checks that each kubeconfig is refused with the named field, and that no message leaks a secret.
fn hold_refusals(table: &[(&str, String, &str)]) {
    for (what, text, field) in table {
        let refusal = match vet(text.as_bytes(), None) {
            Ok(vetted) => panic!("{what}: taken as {vetted:?}"),
            Err(refusal) => refusal,
        };
        assert_eq!(refusal.field(), *field, "{what}: {refusal}");
        assert!(refusal.to_string().starts_with(field), "{what}: {refusal}");
        assert!(refusal.to_string().contains("; "), "{what}: no remedy in: {refusal}");
        assert!(!leaks(&refusal.to_string()), "{what}: {refusal}");
        assert!(!leaks(&format!("{refusal:?}")), "{what}: {refusal:?}");
    }
}

fn allowed() -> Vec<PathBuf> {
    ["/opt/armory", "/kubeconfigfiles/", "/etc/kubesvc"].map(PathBuf::from).to_vec()
}

#[test]
fn a_file_below_an_allowed_folder_is_taken() {
    for path in [
        "/opt/armory/dev",
        "/opt/armory/a/b.yaml",
        "/kubeconfigfiles/..data/dev",
        "//opt//armory/./dev",
        "/etc/kubesvc/ä b",
    ] {
        assert_eq!(vet_file_path(path, &allowed()), Ok(Path::new(path)));
    }
}

#[test]
fn any_other_path_is_refused_with_the_folders_that_are_allowed() {
    for (path, why) in [
        ("", "empty"),
        ("opt/armory/dev", "absolute"),
        ("~/.kube/config", "absolute"),
        ("/opt/armory/../../etc/shadow", "`..`"),
        ("/opt/armory/..", "`..`"),
        ("/opt/armory/dev\0.yaml", "NUL"),
        ("/opt/armory/dev\n", "control"),
        ("/opt/armory", "outside"),
        ("/opt/armory/", "folder"),
        ("/opt/armory/.", "folder"),
        ("/opt/armory-of-another/dev", "outside"),
        ("/opt/Armory/dev", "outside"),
        ("/etc/kubernetes/admin.conf", "outside"),
        ("/", "folder"),
    ] {
        let refusal = vet_file_path(path, &allowed()).unwrap_err();
        assert_eq!(refusal.field(), "kubeconfig.file", "{path:?}");
        assert!(refusal.to_string().contains(why), "{path:?}: {refusal}");
        assert!(refusal.to_string().contains("/opt/armory, /kubeconfigfiles/, /etc/kubesvc"), "{refusal}");
        assert!(!refusal.is_exec());
    }
}

#[test]
fn no_folder_and_no_absolute_folder_allow_nothing() {
    for allowed in [vec![], vec![PathBuf::new()], vec![PathBuf::from("opt")]] {
        assert!(vet_file_path("/opt/armory/dev", &allowed).is_err(), "{allowed:?}");
    }
    assert!(vet_file_path("/opt/x", &[]).unwrap_err().to_string().contains("allows no folder"));
}
