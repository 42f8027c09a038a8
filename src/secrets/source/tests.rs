//! Versions of credentials, in one process and across replicas.

use std::fs;
use std::path::Path;

use axum::body::Body;
use axum::http::{Request, Response};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use kubesvc_core::KubesvcAccountSpec;

const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: \
    'https://one'}}], users: [{name: u, user: {token: TOKEN}}], contexts: [{name: c, context: {cluster: c, user: u}}]}";

/// A simulated API server with one Secret.
#[derive(Clone, Default)]
struct FakeSecretApi(Arc<Mutex<Secret>>);

impl FakeSecretApi {
    fn write(&self, resource_version: &str, content: &str) {
        let mut secret = self.0.lock();
        secret.metadata.name = Some("prod".to_owned());
        secret.metadata.uid = Some("uid-secret".to_owned());
        secret.metadata.resource_version = Some(resource_version.to_owned());
        secret.data = Some([("kubeconfig".to_owned(), ByteString(content.into()))].into());
    }

    fn replica(&self) -> Credentials {
        let secret = Arc::clone(&self.0);
        let served = tower::service_fn(move |_: Request<kube::client::Body>| {
            let body = serde_json::to_vec(&*secret.lock()).expect("it is JSON");
            async { Ok::<_, std::io::Error>(Response::new(Body::from(body))) }
        });
        Credentials::new(KubeAccess::new(kube::Client::new(served, "ns"), "test"), Vec::new())
    }
}

/// A simulated key shared by replicas.
struct FakeKey(Mutex<u8>);

impl FakeKey {
    fn new(key: u8) -> Arc<Self> {
        Arc::new(Self(Mutex::new(key)))
    }
}

impl SharedKey for FakeKey {
    fn digest(&self, parts: &[&[u8]]) -> Option<[u8; 32]> {
        let mut digest = Sha256::new();
        digest.update([*self.0.lock()]);
        parts.iter().for_each(|part| digest.update(part));
        Some(digest.finalize().into())
    }
}

fn account(uid: &str, kubeconfig: &serde_json::Value) -> KubesvcAccount {
    let spec = serde_json::from_value(json!({ "kubeconfig": kubeconfig })).expect("a spec");
    let mut account = KubesvcAccount::new(uid, KubesvcAccountSpec { ..spec });
    account.metadata.namespace = Some("ns".to_owned());
    account.metadata.uid = Some(uid.to_owned());
    account
}

async fn read(credentials: &Credentials, account: &KubesvcAccount) -> Credential {
    credentials.resolve(account, true).await.unwrap_or_else(|failure| unreachable!("{failure}"))
}

/// A replica with its own copy of a file, and the account that names the file.
fn with_copy(folder: &Path, content: &str, key: &Arc<FakeKey>) -> (Credentials, KubesvcAccount) {
    let path = folder.join("prod");
    fs::write(&path, content).expect("written");
    let replica = Credentials {
        engines: Engines::new(vec![Box::new(FileEngine::new(vec![folder.into()]))]),
        ..FakeSecretApi::default().replica()
    };
    let reference = format!("encryptedFile:file!p:{}", path.display());
    (
        replica.shared_by(Arc::clone(key) as Arc<dyn SharedKey>),
        account("uid-prod", &json!({ "reference": reference })),
    )
}

#[tokio::test]
async fn replicas_that_read_a_secret_before_and_after_a_change_of_its_labels_agree() {
    let api = FakeSecretApi::default();
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    let (old, young) = (api.replica(), api.replica());
    api.write("1", KUBECONFIG);
    let first = read(&old, &account).await;
    assert_eq!(first.version.as_deref(), Some("uid-secret/1"));
    api.write("2", KUBECONFIG);
    let (again, other) = (read(&old, &account).await, read(&young, &account).await);
    assert_eq!(again.version.as_deref(), Some("uid-secret/2"));
    assert_eq!(other.version, again.version);
    assert!(again.is(first.version.as_deref()), "it is no other credential for who has read both");
    api.write("3", &KUBECONFIG.replace("TOKEN", "OTHER"));
    assert!(!read(&old, &account).await.is(Some("uid-secret/2")));
    api.write("4", KUBECONFIG);
    assert!(!read(&old, &account).await.is(Some("uid-secret/2")), "in between it was another one");
}

#[tokio::test]
async fn a_secret_without_the_key_is_refused_with_the_keys_that_it_has() {
    let api = FakeSecretApi::default();
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    api.write("1", KUBECONFIG);
    for (keys, shown) in [
        (vec!["value", "config"], "has \"config\", \"value\"; name one in spec.kubeconfig.secretRef.key"),
        (vec![], "has none;"),
        (vec!["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"], "\"h\" and 2 more;"),
    ] {
        let data = keys.into_iter().map(|key| (key.to_owned(), ByteString("S3CRET".into())));
        api.0.lock().data = Some(data.collect());
        let failure = api.replica().resolve(&account, true).await.err().expect("the key is missing");
        assert_eq!(failure.class, FailureClass::CredentialMissing);
        assert!(failure.message.contains(shown), "{failure}");
        assert!(!failure.message.contains("S3CRET"), "{failure}");
    }
}

#[tokio::test]
async fn few_versions_are_remembered() {
    let api = FakeSecretApi::default();
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    let replica = api.replica();
    for version in 0..100 {
        api.write(&version.to_string(), KUBECONFIG);
        assert!(read(&replica, &account).await.same_as.len() < MAX_VERSIONS_PER_ACCOUNT);
    }
}

#[tokio::test]
async fn copies_of_a_file_that_were_written_at_other_times_have_one_version() {
    let (here, there, key) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"), FakeKey::new(1));
    let (one, account) = with_copy(here.path(), KUBECONFIG, &key);
    let (other, elsewhere) = with_copy(there.path(), KUBECONFIG, &key);
    let old = fs::File::open(there.path().join("prod")).expect("it is there");
    old.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    let version = read(&one, &account).await.version;
    assert!(version.is_some());
    assert_eq!(read(&other, &elsewhere).await.version, version);
    fs::write(there.path().join("prod"), KUBECONFIG.replace("TOKEN", "OTHER")).expect("written");
    assert_ne!(read(&other, &elsewhere).await.version, version);
}

#[tokio::test]
async fn a_change_of_the_key_is_another_version_of_the_same_credential() {
    let (folder, key) = (tempfile::tempdir().expect("a folder"), FakeKey::new(1));
    let (replica, account) = with_copy(folder.path(), KUBECONFIG, &key);
    let first = read(&replica, &account).await;
    *key.0.lock() = 2;
    let second = read(&replica, &account).await;
    assert_ne!(second.version, first.version, "who has only the new key knows no other");
    assert!(second.is(first.version.as_deref()));
}

#[tokio::test]
async fn insecure_of_the_account_beside_a_certificate_authority_is_refused() {
    let api = FakeSecretApi::default();
    let pem = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n";
    let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    api.write(
        "1",
        &KUBECONFIG.replace("'https://one'", &format!("'https://one', certificate-authority-data: {pem}")),
    );
    for kubeconfig in [json!({"secretRef": {"name": "prod"}}), json!({"serviceAccount": true})] {
        let mut account = account("uid-prod", &kubeconfig);
        read(&api.replica(), &account).await;
        account.spec.insecure = Some(true);
        let failure = api.replica().resolve(&account, true).await.err().expect("it is refused");
        assert_eq!(failure.class, FailureClass::BadKubeconfig, "{failure}");
        assert!(failure.message.contains("insecure is true"), "{failure}");
    }
    api.write("2", KUBECONFIG);
    let mut open = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    open.spec.insecure = Some(true);
    read(&api.replica(), &open).await;
}

/// The version that is sent to an agent, from a copy if there is one.
async fn sent(credentials: &Credentials, account: &KubesvcAccount) -> Option<String> {
    credentials.resolve(account, false).await.ok()?.version
}

#[tokio::test]
async fn a_copy_of_a_secret_that_was_seen_to_change_is_not_sent() {
    let api = FakeSecretApi::default();
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    let replica = api.replica();
    api.write("1", KUBECONFIG);
    assert_eq!(sent(&replica, &account).await.as_deref(), Some("uid-secret/1"));
    api.write("2", KUBECONFIG);
    replica.secret_changed("ns", "prod");
    assert_eq!(sent(&replica, &account).await.as_deref(), Some("uid-secret/2"));
}

#[tokio::test]
async fn sessions_that_want_a_credential_at_once_read_it_once() {
    let api = FakeSecretApi::default();
    api.write("1", KUBECONFIG);
    let (secret, reads) = (Arc::clone(&api.0), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&reads);
    let served = tower::service_fn(move |_: Request<kube::client::Body>| {
        *counted.lock() += 1;
        let body = serde_json::to_vec(&*secret.lock()).expect("it is JSON");
        async {
            tokio::task::yield_now().await;
            Ok::<_, std::io::Error>(Response::new(Body::from(body)))
        }
    });
    let replica = Credentials::new(KubeAccess::new(kube::Client::new(served, "ns"), "test"), Vec::new());
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    let read = futures::future::join_all((0..4).map(|_| sent(&replica, &account))).await;
    assert_eq!(read, vec![Some("uid-secret/1".to_owned()); 4]);
    assert_eq!(*reads.lock(), 1);
}

#[tokio::test]
async fn a_copy_of_a_secret_that_is_not_watched_is_sent_for_two_seconds_at_most() {
    let api = FakeSecretApi::default();
    let account = account("uid-prod", &json!({"secretRef": {"name": "prod"}}));
    let replica = api.replica();
    api.write("1", KUBECONFIG);
    assert!(sent(&replica, &account).await.is_some());
    api.0.lock().data = None;
    // Far below 30 s, and long enough for a busy machine.
    let deadline = Instant::now() + 5 * COPY_LIFETIME;
    while sent(&replica, &account).await.is_some() {
        assert!(Instant::now() < deadline, "it is still sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
