//! Kubeconfigs that the agent's owner names.
#![expect(clippy::panic, reason = "this is how a test fails")]

use std::path::Path;

use super::*;
use crate::activation::credential::{FileKubeconfig, Purpose};
use kubesvc_core::kubeconfig::{Authentication, VettedKubeconfig};

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

async fn read_by(word: DefinitionOrigin, folder: &Path, text: &str) -> Result<FileKubeconfig, Failure> {
    let path = folder.join("config");
    std::fs::write(&path, text).expect("written");
    activator(Vec::new()).read_kubeconfig(path.to_str().expect("text"), None, word, Purpose::Use).await
}

async fn owned(folder: &Path, cluster: &str, user: &str) -> (VettedKubeconfig, Vec<String>) {
    let text = config(cluster, user);
    let FileKubeconfig { vetted, files, .. } =
        read_by(DefinitionOrigin::OwnFile, folder, &text).await.expect("readable files");
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
async fn inline_data_overrides_a_path_and_a_token_file_overrides_a_token() {
    let (folder, authority) = folder();
    let data = STANDARD.encode(authority.pem());
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
async fn unquoted_number_is_refused_and_quoted_text_is_kept() {
    let (folder, _) = folder();
    for (user, key) in [
        ("tokenFile: token, client-certificate-data: 007, client-key-data: x", "client-certificate-data"),
        ("tokenFile: token, client-certificate-data: eA==, client-key-data: true", "client-key-data"),
    ] {
        let text = config("certificate-authority: pki/ca.crt", user);
        let refusal =
            read_by(DefinitionOrigin::OwnFile, folder.path(), &text).await.expect("readable").vetted;
        let refusal = refusal.expect_err("a number is no text").to_string();
        assert!(refusal.contains(key) && refusal.contains("quotes"), "{refusal}");
    }
    let named =
        config("certificate-authority: pki/ca.crt, tls-server-name: \"a.example\"", "tokenFile: token");
    let vetted = read_by(DefinitionOrigin::OwnFile, folder.path(), &named)
        .await
        .expect("readable")
        .vetted
        .expect("good");
    assert_eq!(vetted.tls_server_name.as_deref(), Some("a.example"));
}

#[tokio::test]
async fn missing_or_empty_file_fails_with_its_name() {
    let (folder, _) = folder();
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    for (cluster, user, said) in [
        ("certificate-authority: gone", "tokenFile: token", "gone cannot be read on the agent"),
        ("certificate-authority: sub", "tokenFile: token", "sub is no regular file"),
        ("x: y", "tokenFile: /no/such/token", "/no/such/token cannot be read"),
        ("x: y", "tokenFile: empty", "empty holds no token"),
        ("x: y", "client-certificate: pki/client.crt, client-key: gone", "gone cannot be read"),
    ] {
        let failure = read_by(DefinitionOrigin::OwnFile, folder.path(), &config(cluster, user)).await;
        let failure = failure.err().expect("a failure");
        assert_eq!(failure.class(), Class::BadReference);
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

/// Script for the program `aws`, which is a shell under another name.
const LOGIN: &str = r#"
echo run >> "$COUNT"
[ "$KUBERNETES_EXEC_INFO" ] || exit 3
printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"k8s-aws-v1.%s","expirationTimestamp":"2099-01-01T00:00:00Z"}}' "$1-$2"
"#;

/// A folder like that of an EKS user, and an agent with its programs.
struct Eks {
    folder: TempDir,
    server: TestServer,
    stale: Arc<AtomicBool>,
    activator: Activator,
}

impl Eks {
    async fn start() -> Self {
        let (folder, authority) = folder();
        std::fs::create_dir(folder.path().join("bin")).expect("a folder");
        symlink("/bin/sh", folder.path().join("bin/aws")).expect("linked");
        std::fs::write(folder.path().join("login"), LOGIN).expect("written");
        let stale = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&stale);
        let server = TestServer::start(&authority, move |path| match path {
            "/version" if refuses.swap(false, Ordering::SeqCst) => json(401, "{}"),
            path => good(path),
        })
        .await;
        let programs =
            Programs::new(vec!["aws".to_owned()], Some(folder.path().join("bin").into_os_string()));
        let activator = Activator { programs, ..activator(vec![folder.path().to_owned()]) };
        Self { folder, server, stale, activator }
    }

    /// Starts an account with this content of `exec`.
    async fn start_with(&self, exec: &str, word: DefinitionOrigin) -> Result<ActivatedAccount, Failure> {
        let text = config("certificate-authority: pki/ca.crt", &format!("exec: {{{exec}}}"));
        let path = self.folder.path().join("config");
        std::fs::write(&path, text.replace("https://127.0.0.1:1", &self.server.url())).expect("written");
        let definition = Definition::split(spec(Credential::File(path.display().to_string()))).1;
        self.activator.start(&definition, word).await
    }

    /// What `aws eks update-kubeconfig` writes, for a program that runs this script.
    fn exec(&self, script: &str) -> String {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        format!(
            "apiVersion: client.authentication.k8s.io/v1beta1, command: aws, provideClusterInfo: false, \
             args: ['{}', get-token, prod], env: [{{name: COUNT, value: '{}'}}]",
            at(script),
            at("count")
        )
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.folder.path().join("count")).map_or(0, |text| text.lines().count())
    }

    fn write(&self, name: &str, script: &str) {
        std::fs::write(self.folder.path().join(name), script).expect("written");
    }
}

#[tokio::test]
async fn a_program_logs_in_once_until_its_credential_is_refused() {
    let eks = Eks::start().await;
    let exec = eks.exec("login");
    for _ in 0..2 {
        eks.start_with(&exec, DefinitionOrigin::OwnFile).await.expect("reached");
    }
    assert_eq!(eks.runs(), 1, "it is kept until it expires");
    assert!(
        eks.server.asked.lock().iter().all(|asked| asked.authorization == "Bearer k8s-aws-v1.get-token-prod")
    );
    eks.stale.store(true, Ordering::SeqCst);
    eks.start_with(&exec, DefinitionOrigin::OwnFile).await.expect("reached with a new one");
    assert_eq!(eks.runs(), 2, "401 is answered by one further run");
}

#[tokio::test]
async fn only_a_listed_program_of_the_owner_runs() {
    let eks = Eks::start().await;
    let exec = eks.exec("login");
    let stranger = eks.start_with(&exec, DefinitionOrigin::Hub).await.expect_err("exec of a stranger");
    assert_eq!(stranger.class(), Class::ExecForbidden, "{stranger:?}");
    for command in ["sh", "/bin/sh", "./aws", "bin/aws"] {
        let exec = exec.replace("command: aws", &format!("command: {command}"));
        let failure = eks.start_with(&exec, DefinitionOrigin::OwnFile).await.expect_err(command);
        assert_eq!(failure.class(), Class::ExecForbidden, "{failure:?}");
        assert!(failure.message.contains("kubernetes.execCommands"), "{failure:?}");
    }
    std::fs::remove_file(eks.folder.path().join("bin/aws")).expect("removed");
    let gone = eks.start_with(&exec, DefinitionOrigin::OwnFile).await.expect_err("not installed");
    assert!(gone.retryable && gone.message.contains("PATH"), "{gone:?}");
    let text = config("certificate-authority: pki/ca.crt", "auth-provider: {name: gcp}");
    std::fs::write(eks.folder.path().join("config"), text).expect("written");
    let spec = spec(Credential::File(eks.folder.path().join("config").display().to_string()));
    let failure = eks.activator.source(&spec, DefinitionOrigin::OwnFile).await.err().expect("a plugin");
    assert_eq!(failure.class(), Class::ExecForbidden);
    assert_eq!(eks.runs(), 0);
}

#[tokio::test]
async fn invalid_output_of_a_program_is_reported_without_its_content() {
    let eks = Eks::start().await;
    for (script, said) in [
        ("echo CANARY; echo CANARY >&2; exit 7", "exit code 7"),
        ("echo CANARY", "no ExecCredential"),
        ("yes CANARY", "more than"),
        (&LOGIN.replace("v1beta1", "v1"), "apiVersion"),
        ("kill -9 $$", "was killed"),
    ] {
        eks.write("wrong", script);
        let failure = eks.start_with(&eks.exec("wrong"), DefinitionOrigin::OwnFile).await.expect_err(script);
        assert!(failure.message.contains(said), "{script}: {failure:?}");
        assert!(!failure.message.contains("CANARY") && failure.before_send, "{failure:?}");
    }
    assert!(eks.server.asked.lock().is_empty());
}

/// Its child keeps the output open, and would outlive it.
#[tokio::test]
async fn children_of_an_exec_program_are_killed() {
    let eks = Eks::start().await;
    eks.write("leaves", &format!("sleep 1000 & echo $! > \"$COUNT.child\"\n{LOGIN}"));
    eks.start_with(&eks.exec("leaves"), DefinitionOrigin::OwnFile)
        .await
        .expect("reached, and not after 30 s");
    let child = std::fs::read_to_string(eks.folder.path().join("count.child")).expect("it was started");
    let stat = format!("/proc/{}/stat", child.trim());
    for _ in 0..500 {
        // The process may be a zombie that nobody has reaped yet.
        if std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it lives on");
}

#[tokio::test]
async fn probe_checks_but_never_runs_an_exec_program() {
    let eks = Eks::start().await;
    let text = config("certificate-authority: pki/ca.crt", &format!("exec: {{{}}}", eks.exec("login")));
    let path = eks.folder.path().join("config");
    std::fs::write(&path, &text).expect("written");
    let target = Target::File(path.display().to_string());
    eks.activator.probe(&target, None, DefinitionOrigin::OwnFile).await.expect("it could log in");
    std::fs::write(&path, text.replace("command: aws", "command: sh")).expect("written");
    eks.activator.probe(&target, None, DefinitionOrigin::OwnFile).await.expect_err("it could not");
    assert_eq!(eks.runs(), 0);
}

#[tokio::test]
async fn owned_kubeconfig_is_vetted_like_any_other() {
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
        let refusal =
            read_by(DefinitionOrigin::OwnFile, folder.path(), &text).await.expect("readable").vetted;
        let refusal = refusal.err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
        assert!(refusal.contains(said), "{text}\n{refusal}");
    }
}

#[tokio::test]
async fn a_kubeconfig_from_the_hub_may_name_no_files() {
    let (folder, _) = folder();
    let path = folder.path().join("config");
    std::fs::write(&path, config("certificate-authority: pki/ca.crt", "tokenFile: token")).expect("written");
    let activator = activator(vec![folder.path().to_owned()]);
    let read = activator
        .read_kubeconfig(path.to_str().expect("text"), None, DefinitionOrigin::Hub, Purpose::Use)
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
    let reached = activator(Vec::new()).start(&definition, DefinitionOrigin::OwnFile).await.expect("reached");
    assert_eq!((reached.identity.version.as_str(), reached.files.len()), ("v1.33.1", 3));
    assert_eq!(server.asked.lock()[0].authorization, "Bearer a-token-of-some-length");
}
