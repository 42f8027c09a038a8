//! Kubeconfigs that the agent's owner names.
#![expect(clippy::panic, reason = "this is how a test fails")]

use std::path::Path;

use super::*;
use crate::account::kubeconfig::{Authentication, VettedKubeconfig};
use crate::agent::activation::credential::FromFile;

/// A folder with a certificate, its key, an authority and a token.
fn folder() -> (TempDir, Authority) {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let (certificate, key) = authority.server();
    std::fs::create_dir(folder.path().join("pki")).expect("a folder");
    for (name, text) in [
        ("pki/client.crt", certificate.pem().into_bytes()),
        ("pki/client.key", key.serialize_pem().into_bytes()),
        ("pki/ca.crt", authority.pem()),
        ("token", b"  a-token-of-some-length\n".to_vec()),
        ("empty", b" \n".to_vec()),
    ] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    (folder, authority)
}

fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts:\n- name: c\n  context: {{cluster: k, user: u, namespace: team}}\n\
         - name: other\n  context: {{cluster: k, user: broken}}\n\
         clusters:\n- name: k\n  cluster: {{server: 'https://127.0.0.1:1', {cluster}}}\n\
         users:\n- name: broken\n  user: {{tokenFile: /no/such/file}}\n- name: u\n  user: {{{user}}}\n"
    )
}

async fn read_by(word: Word, folder: &Path, text: &str) -> Result<FromFile, Failure> {
    let path = folder.join("config");
    std::fs::write(&path, text).expect("written");
    activator(Vec::new()).read_kubeconfig(path.to_str().expect("text"), None, word).await
}

async fn owned(folder: &Path, cluster: &str, user: &str) -> (VettedKubeconfig, Vec<String>) {
    let text = config(cluster, user);
    let FromFile { vetted, files } = read_by(Word::Owners, folder, &text).await.expect("readable files");
    let name = |file: &ReadFile| file.path.strip_prefix(folder).expect("below").display().to_string();
    (vetted.unwrap_or_else(|refusal| panic!("{text}\n{refusal}")), files.iter().map(name).collect())
}

#[tokio::test]
async fn the_files_that_it_names_are_read_and_watched() {
    let (folder, authority) = folder();
    let (vetted, files) = owned(
        folder.path(),
        "certificate-authority: pki/ca.crt",
        "client-certificate: pki/client.crt, client-key: ./pki/client.key, tokenFile: token",
    )
    .await;
    assert_eq!(files, ["config", "pki/ca.crt", "pki/client.crt", "pki/client.key", "token"]);
    assert_eq!(vetted.namespace.as_deref(), Some("team"));
    let ca = vetted.certificate_authority.expect("an authority");
    assert_eq!(String::from_utf8_lossy(&ca).trim(), String::from_utf8_lossy(&authority.pem()).trim());
    let Authentication::TokenAndClientCertificate { token, .. } = vetted.authentication else {
        panic!("not both")
    };
    assert_eq!(secrecy::ExposeSecret::expose_secret(&token), "a-token-of-some-length");
}

#[tokio::test]
async fn absolute_paths_and_quiet_ones_do_too() {
    let (folder, _) = folder();
    let token = folder.path().join("token");
    let (vetted, files) =
        owned(folder.path(), "insecure-skip-tls-verify: true", &format!("tokenFile: {}", token.display()))
            .await;
    assert!(vetted.insecure_skip_tls_verify);
    assert_eq!(files, ["config", "token"]);
    let (_, files) = owned(folder.path(), "certificate-authority: ~", "token: 'plain', tokenFile: ''").await;
    assert_eq!(files, ["config"]);
}

#[tokio::test]
async fn data_stands_over_a_path_and_a_token_file_over_a_token() {
    let (folder, authority) = folder();
    let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, authority.pem());
    let (vetted, files) = owned(
        folder.path(),
        &format!("certificate-authority: /no/such/file, certificate-authority-data: {data}"),
        "token: older, tokenFile: token",
    )
    .await;
    assert_eq!(files, ["config", "token"]);
    assert!(vetted.certificate_authority.is_some());
    let Authentication::Token(token) = vetted.authentication else { panic!("no token") };
    assert_eq!(secrecy::ExposeSecret::expose_secret(&token), "a-token-of-some-length");
}

#[tokio::test]
async fn a_text_that_looks_like_something_else_stays_what_it_is() {
    let (folder, _) = folder();
    for (user, key) in [
        ("tokenFile: token, client-certificate-data: 007, client-key-data: x", "client-certificate-data"),
        ("tokenFile: token, client-certificate-data: eA==, client-key-data: true", "client-key-data"),
    ] {
        let text = config("certificate-authority: pki/ca.crt", user);
        let refusal = read_by(Word::Owners, folder.path(), &text).await.expect("readable").vetted;
        let refusal = refusal.expect_err("a number is no text").to_string();
        assert!(refusal.contains(key) && refusal.contains("quotes"), "{refusal}");
    }
    let named =
        config("certificate-authority: pki/ca.crt, tls-server-name: \"a.example\"", "tokenFile: token");
    let vetted = read_by(Word::Owners, folder.path(), &named).await.expect("readable").vetted.expect("good");
    assert_eq!(vetted.tls_server_name.as_deref(), Some("a.example"));
}

#[tokio::test]
async fn a_file_that_is_not_there_or_holds_nothing_is_said() {
    let (folder, _) = folder();
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    for (cluster, user, said) in [
        ("certificate-authority: gone", "tokenFile: token", "gone cannot be read on the agent"),
        ("certificate-authority: sub", "tokenFile: token", "sub is no regular file"),
        ("x: y", "tokenFile: /no/such/token", "/no/such/token cannot be read"),
        ("x: y", "tokenFile: empty", "empty holds no token"),
        ("x: y", "client-certificate: pki/client.crt, client-key: gone", "gone cannot be read"),
    ] {
        let failure = read_by(Word::Owners, folder.path(), &config(cluster, user)).await;
        let failure = failure.err().expect("a failure");
        assert_eq!(failure.class(), Class::BadReference);
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_program_stays_refused_with_the_reason() {
    let (folder, _) = folder();
    for user in ["exec: {command: aws}, tokenFile: /no/such/file", "auth-provider: {name: gcp}"] {
        let text = config("certificate-authority: pki/ca.crt", user);
        let path = folder.path().join("config");
        std::fs::write(&path, text).expect("written");
        let spec = spec(Credential::File(path.display().to_string()));
        let failure = activator(Vec::new()).source(&spec, Word::Owners).await.err().expect("a failure");
        assert_eq!(failure.class(), Class::ExecForbidden);
        assert!(failure.message.contains("not built in"), "{}", failure.message);
        assert!(failure.message.starts_with(&path.display().to_string()), "{}", failure.message);
    }
}

#[tokio::test]
async fn what_vetting_refuses_stays_refused() {
    let (folder, _) = folder();
    for (text, said) in [
        (config("proxy-url: http://p", "tokenFile: token"), "proxy-url"),
        (config("certificate-authority: pki/ca.crt", "tokenFile: token, as: root"), "as"),
        (config("certificate-authority: token", "tokenFile: token"), "certificate-authority-data"),
        (config("certificate-authority: pki/ca.crt", "client-certificate: pki/ca.crt"), "client-"),
        (config("x: &a y", "tokenFile: token"), "anchor"),
        (config("x: y, x: z", "tokenFile: token"), "a second time"),
        (format!("{}---\na: b\n", config("x: y", "tokenFile: token")), "document"),
        ("a: [".to_owned(), "kubeconfig"),
        (String::new(), "is empty"),
    ] {
        let refusal = read_by(Word::Owners, folder.path(), &text).await.expect("readable").vetted;
        let refusal = refusal.err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
        assert!(refusal.contains(said), "{text}\n{refusal}");
    }
}

#[tokio::test]
async fn a_strangers_kubeconfig_names_no_files() {
    let (folder, _) = folder();
    let path = folder.path().join("config");
    std::fs::write(&path, config("certificate-authority: pki/ca.crt", "tokenFile: token")).expect("written");
    let activator = activator(vec![folder.path().to_owned()]);
    let read = activator
        .read_kubeconfig(path.to_str().expect("text"), None, Word::Strangers)
        .await
        .expect("readable");
    let refusal = read.vetted.expect_err("paths").to_string();
    assert!(refusal.contains("tokenFile is a path, and no files are read"), "{refusal}");
}

#[tokio::test]
async fn an_account_with_files_reaches_its_cluster() {
    let (folder, authority) = folder();
    let server = TestServer::start(&authority, good).await;
    let text = config("certificate-authority: pki/ca.crt", "tokenFile: token")
        .replace("https://127.0.0.1:1", &server.url());
    let path = folder.path().join("config");
    std::fs::write(&path, text).expect("written");
    let definition = Definition::split(spec(Credential::File(path.display().to_string()))).1;
    let reached = activator(Vec::new()).start(&definition, Word::Owners).await.expect("reached");
    assert_eq!((reached.identity.version.as_str(), reached.files.len()), ("v1.33.1", 3));
    assert_eq!(server.asked.lock()[0].authorization, "Bearer a-token-of-some-length");
}
