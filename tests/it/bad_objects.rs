//! Invalid and hostile kubeconfigs: each is refused with the field at fault, nothing of it is executed, and
//! other accounts do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::join_all;
use kubesvc_core::State;
use tokio::net::TcpListener;

use crate::world::{World, condition};

const CANARY: &str = "CANARY-5f1d";

/// Builds a kubeconfig from the content of its cluster and its user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: dev\n\
         clusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n\
         contexts: [{{name: dev, context: {{cluster: c, user: u}}}}]\n"
    )
}

/// What is refused: the bytes, and the field that the message must name.
fn hostile(counting_port: u16, touched: &str) -> Vec<(Vec<u8>, &'static str)> {
    let token = format!("token: {CANARY}");
    let here = format!("server: 'https://127.0.0.1:{counting_port}'");
    let user = |extra: &str| (kubeconfig(&here, &format!("{token}, {extra}")).into_bytes(), extra.len());
    let at = |server: &str| kubeconfig(&format!("server: '{server}'"), &token).into_bytes();
    let cluster = |extra: &str| kubeconfig(&format!("{here}, {extra}"), &token).into_bytes();
    let whole = |text: String| text.into_bytes();
    let good = kubeconfig(&here, &token);
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, args: ['{touched}'], interactiveMode: Never}}"
    );
    let provider = format!(
        "auth-provider: {{name: gcp, config: {{cmd-path: touch, cmd-args: '{touched}', access-token: {CANARY}}}}}"
    );
    let key = STANDARD.encode(format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"));
    let certificate = STANDARD.encode("-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n");
    let server = "clusters[c].cluster.server";
    vec![
        (user(&exec).0, "users[u].user.exec"),
        (kubeconfig(&here, &exec).into_bytes(), "users[u].user.exec"),
        (user(&provider).0, "users[u].user.auth-provider"),
        (user("tokenFile: /etc/shadow").0, "users[u].user.tokenFile"),
        (user("client-certificate: /etc/ssl/x.crt").0, "users[u].user.client-certificate"),
        (user("client-key: /etc/ssl/x.key").0, "users[u].user.client-key"),
        (user("as: system:admin").0, "users[u].user.as"),
        (user("as-groups: ['system:masters']").0, "users[u].user.as-groups"),
        (kubeconfig(&here, "").into_bytes(), "users[u].user"),
        (
            kubeconfig(&here, &format!("client-key-data: {key}")).into_bytes(),
            "users[u].user.client-certificate-data",
        ),
        (
            kubeconfig(
                &here,
                &format!("client-certificate-data: {certificate}, client-key-data: '{CANARY}!'"),
            )
            .into_bytes(),
            "users[u].user.client-key-data",
        ),
        (kubeconfig(&here, &format!("password: {CANARY}")).into_bytes(), "users[u].user.password"),
        (
            kubeconfig(&here, &format!("token: \"{CANARY}\\r\\nX-Evil: yes\"")).into_bytes(),
            "users[u].user.token",
        ),
        (
            cluster(&format!("proxy-url: 'http://u:{CANARY}@127.0.0.1:{counting_port}'")),
            "clusters[c].cluster.proxy-url",
        ),
        (cluster("certificate-authority: /etc/shadow"), "clusters[c].cluster.certificate-authority"),
        (
            cluster(&format!("certificate-authority-data: '{CANARY}!'")),
            "clusters[c].cluster.certificate-authority-data",
        ),
        (
            cluster(&format!("certificate-authority-data: {key}")),
            "clusters[c].cluster.certificate-authority-data",
        ),
        (
            cluster(&format!("insecure-skip-tls-verify: true, certificate-authority-data: {certificate}")),
            "clusters[c].cluster.insecure-skip-tls-verify",
        ),
        (at(&format!("http://127.0.0.1:{counting_port}")), server),
        (at(&format!("https://u:{CANARY}@127.0.0.1:{counting_port}")), server),
        (at(&format!("https://127.0.0.1:{counting_port}/?token={CANARY}")), server),
        (at(&format!("https://127.0.0.1:{counting_port}/#{CANARY}")), server),
        (at(&format!("https://2130706433:{counting_port}")), server),
        (at(&format!("https://0x7f.0.0.1:{counting_port}")), server),
        (at("https://169.254.169.254/latest/meta-data"), server),
        (at("https://[fe80::1]:6443"), server),
        (at("https://[::ffff:169.254.169.254]"), server),
        (at("file:///etc/shadow"), server),
        (whole(good.replace("kind: Config", "kind: Pod")), "kind"),
        (whole(good.replace("current-context: dev\n", "")), "current-context"),
        (whole(good.replace("user: u}", "user: nobody}")), "contexts[dev].context.user"),
        (whole(format!("x: &a [{CANARY}]\ny: *a\n{good}")), "kubeconfig"),
        (whole(format!("{good}---\n{good}")), "kubeconfig"),
        (whole(format!("{good}current-context: dev\n")), "kubeconfig"),
        (whole(format!("{good}x: {}{}\n", "[".repeat(40), "]".repeat(40))), "kubeconfig"),
        (whole(format!("{good}# {}\n", CANARY.repeat(30_000))), "kubeconfig"),
        (whole(format!("{{{CANARY}: [")), "kubeconfig"),
        (vec![0xff, 0xfe, b'k', 0], "kubeconfig"),
        (Vec::new(), "kubeconfig"),
    ]
}

/// A port that counts connections.
async fn counting_port() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let caught = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&caught);
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, caught)
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_kubeconfigs_are_refused_by_field_without_side_effects() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let (port, caught) = counting_port().await;
    let touched = world.folder().file("touched-by-a-kubeconfig");
    let cases = hostile(port, &touched.display().to_string());
    assert!(cases.len() >= 25);

    let world = &world;
    let made = cases.iter().enumerate().map(|(index, (bytes, _))| async move {
        let name = format!("hostile-{index}");
        world.account(&name).zone("east").kubeconfig_bytes(bytes).create().await;
    });
    join_all(made).await;
    world.account("good").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("good", State::Active).await;

    for (index, (_, field)) in cases.iter().enumerate() {
        let account = world.until(&format!("hostile-{index}"), State::Failed).await;
        let status = account.status_or_default();
        let message = status.error_message.clone().unwrap_or_default();
        assert!(message.contains(field), "case {index}: no {field} in: {message}");
        assert!(!message.contains("CANARY"), "case {index}: {message}");
        assert_eq!(
            (status.failed_count, status.epoch.0),
            (1, 0),
            "case {index}: no agent was asked: {message}"
        );
        let ready = condition(&account, "Ready").expect("a condition");
        let reason = if field.ends_with("exec") || field.ends_with("auth-provider") {
            "ExecForbidden"
        } else {
            "KubeconfigRefused"
        };
        assert_eq!(ready.reason, reason, "case {index}: {message}");
        assert_eq!(
            condition(&account, "Stalled").map(|one| one.status).as_deref(),
            Some("True"),
            "case {index}"
        );
    }
    assert!(!touched.exists(), "a program of a kubeconfig was run");
    assert_eq!(
        caught.load(Ordering::SeqCst),
        0,
        "somebody connected to a server or proxy of a refused kubeconfig"
    );
    for (name, log) in world.all_logs() {
        assert!(!log.contains("CANARY"), "the log of {name} has a canary");
    }
    assert_eq!(world.state("good").await, Some(State::Active));
}
