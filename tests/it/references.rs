//! Kubeconfigs by secret reference, and in Secrets that come later: read from where the reference says, noticed when they
//! change, and refused with the reason if they are invalid.

use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kubesvc_core::{KubesvcAccount, State};
use serde_json::{Value, json};

use crate::world::{Cluster, World, case, condition, run_cases};

fn by(reference: &str) -> Value {
    json!({ "reference": reference })
}

fn message(account: &KubesvcAccount) -> String {
    account.status_or_default().error_message.clone().unwrap_or_default()
}

fn is_stalled(account: &KubesvcAccount) -> bool {
    condition(account, "Stalled").is_some_and(|one| one.status == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_are_read_from_where_their_sources_say_and_when_they_change() {
    // Retries are so slow that they cannot be what repairs an account.
    let world = World::prepare()
        .setting("kubesvc.dynamicAccounts.retryFrequencySeconds", 3600)
        .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 3600)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    run_cases([
        case(secret_reference_is_resolved_and_its_change_reactivates_the_account(&world, &cluster)),
        case(invalid_reference_is_named_and_stalls_the_account(&world, &cluster)),
        case(missing_secret_or_key_is_named_and_its_creation_activates_at_once(&world, &cluster)),
        case(redacted_reference_sent_back_by_rest_is_kept(&world, &cluster)),
        case(rest_accepts_a_reference_wherever_it_accepts_a_file(&world, &cluster)),
    ])
    .await;
}

async fn secret_reference_is_resolved_and_its_change_reactivates_the_account(world: &World, old: &Cluster) {
    let new = world.cluster("new").await;
    world.secret("changing", old.kubeconfig().as_bytes(), true).await;
    let user_secret = format!("secret://k8s?n=changing&k=kubeconfig&ns={}", world.namespace());
    for (name, reference) in [
        ("file", "encryptedFile:k8s!n:changing!k:kubeconfig"),
        ("value", "encrypted:k8s!k:kubeconfig!n:changing"),
        ("user", user_secret.as_str()),
    ] {
        world.account(name).zone("east").spec("kubeconfig", by(reference)).create().await;
        let account = world.until(name, State::Active).await;
        assert_eq!(account.status_or_default().epoch.0, 1);
        assert!(account.status_or_default().credential_version.is_some());
        let shown = world.get(&format!("/armory/accounts/{name}")).await;
        assert_eq!(shown.json["definition"]["kubeconfigFile"], reference, "{shown}");
        let row = world.until_row(name, "ACTIVE").await;
        assert!(row.definition.is_some_and(|text| text.contains(reference)));
    }
    world.secret("changing", new.kubeconfig().as_bytes(), true).await;
    for name in ["file", "value", "user"] {
        world
            .until_account(name, "is ACTIVE with the new credential", |account| {
                let status = account.status_or_default();
                status.state() == State::Active && status.epoch.0 == 2
            })
            .await;
    }
    // The Secret is deleted, and comes back.
    let secrets = world.api::<Secret>();
    secrets.delete("changing", &DeleteParams::default()).await.expect("it is there");
    let failed = world.until_reason("file", State::Failed, "CredentialMissing").await;
    assert!(message(&failed).contains("n in spec.kubeconfig.reference"), "{}", message(&failed));
    world.secret("changing", new.kubeconfig().as_bytes(), true).await;
    for name in ["file", "value", "user"] {
        world.until(name, State::Active).await;
    }
}

async fn invalid_reference_is_named_and_stalls_the_account(world: &World, cluster: &Cluster) {
    world.secret("store", cluster.kubeconfig().as_bytes(), true).await;
    world.secret("binary", b"\xff\xfe\0", true).await;
    world.secret("large", &vec![b'#'; 300 * 1024], true).await;
    let own = format!("namespace {:?}", world.namespace());
    let cases = [
        ("foreign", "encrypted:k8s!n:store!k:kubeconfig!ns:kube-system", "SourceForbidden", own.as_str()),
        ("no-name", "encrypted:k8s!n:../store!k:kubeconfig", "ReferenceRefused", "n is no name of a Secret"),
        ("no-key", "encrypted:k8s!n:store", "ReferenceRefused", "engine k8s needs the parameter k"),
        ("vault", "encryptedFile:vault!e:secret!p:a!k:b", "ReferenceRefused", "\"vault\" is not available"),
        ("s3", "encryptedFile:s3!r:eu!b:a!f:b", "ReferenceRefused", "there are file, k8s, noop"),
        ("off", "encryptedFile:file!p:/etc/hostname", "ReferenceRefused", "kubesvc.secrets.folders"),
        ("broken", "encrypted:k8s!", "ReferenceRefused", "parameter 1 is empty"),
        ("binary", "encrypted:k8s!n:binary!k:kubeconfig", "KubeconfigRefused", "kubeconfig refused"),
        ("large", "encrypted:k8s!n:large!k:kubeconfig", "KubeconfigRefused", "256 KiB"),
        ("nothing", "encrypted:noop!v:nothing", "KubeconfigRefused", "kubeconfig refused"),
    ];
    for (name, reference, ..) in cases {
        world.account(name).zone("east").spec("kubeconfig", by(reference)).create().await;
    }
    for (name, _, reason, said) in cases {
        let account = world.until_reason(name, State::Failed, reason).await;
        assert!(is_stalled(&account), "{name}: {account:#?}");
        assert!(message(&account).contains(said), "{name}: {}", message(&account));
    }
    // Something that may still be created is waited for.
    for (name, reference, said) in [
        ("late", "encrypted:k8s!n:later!k:kubeconfig", "Secret"),
        ("keyless", "encrypted:k8s!n:store!k:other", "has no key \"other\""),
    ] {
        world.account(name).zone("east").spec("kubeconfig", by(reference)).create().await;
        let account = world.until_reason(name, State::Failed, "CredentialMissing").await;
        assert!(!is_stalled(&account) && message(&account).contains(said), "{account:#?}");
    }
    world.secret("later", cluster.kubeconfig().as_bytes(), true).await;
    world.until("late", State::Active).await;
    // A corrected reference is tried at once.
    let right = json!({"spec": {"kubeconfig": by("encrypted:k8s!n:store!k:kubeconfig")}});
    world.patch("foreign", right).await;
    world.until("foreign", State::Active).await;
}

async fn missing_secret_or_key_is_named_and_its_creation_activates_at_once(world: &World, cluster: &Cluster) {
    world.account("uncreated").zone("east").create().await;
    let source = json!({"secretRef": {"name": "without-key", "key": "config"}});
    world.secret("without-key", cluster.kubeconfig().as_bytes(), true).await;
    world.account("without-key").zone("east").spec("kubeconfig", source).create().await;
    for (name, named) in [("uncreated", "uncreated"), ("without-key", "config")] {
        let failed = world.until_reason(name, State::Failed, "CredentialMissing").await;
        assert_eq!(condition(&failed, "Reconciling").map(|one| one.status).as_deref(), Some("True"));
        let message = failed.status_or_default().error_message.clone().unwrap_or_default();
        assert!(message.contains(named) && message.contains("Secret"), "{message}");
    }
    world.secret("uncreated", cluster.kubeconfig().as_bytes(), true).await;
    world.until("uncreated", State::Active).await;
    world.patch("without-key", json!({"spec": {"kubeconfig": {"secretRef": {"key": "kubeconfig"}}}})).await;
    world.until("without-key", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_file_reference_is_read_only_below_configured_folders() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("prod");
    let world = World::prepare()
        .setting("kubesvc.secrets.folders", json!([folder.path().display().to_string()]))
        .start()
        .await;
    let (old, new) = (world.cluster("old").await, world.cluster("new").await);
    std::fs::write(&path, old.kubeconfig()).expect("the folder is there");
    let agent = world.agent("agent-1").start().await;
    let reference = format!("encryptedFile:file!p:{}", path.display());
    world.account("prod").zone("east").spec("kubeconfig", by(&reference)).create().await;
    world.account("out").zone("east").spec("kubeconfig", by("encrypted:file!p:/etc/hostname")).create().await;
    world.until("prod", State::Active).await;
    let out = world.until_reason("out", State::Failed, "ReferenceRefused").await;
    assert!(message(&out).contains("outside of the folders"), "{}", message(&out));
    // A restart finds the same file and writes nothing.
    let writes = world.writes_to("prod").len();
    world.operator().kill_and_start().await;
    world.until_connected(&agent, true).await;
    world.account("next").zone("east").kubeconfig(&new.kubeconfig()).create().await;
    world.until("next", State::Active).await;
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
    // Nothing reports a changed file: only the start of an operator and the resync notice it.
    std::fs::write(&path, new.kubeconfig()).expect("the folder is there");
    world.operator().kill_and_start().await;
    world
        .until_account("prod", "was activated anew", |account| {
            account.status_or_default().state() == State::Active && account.status_or_default().epoch.0 == 2
        })
        .await;
}

async fn redacted_reference_sent_back_by_rest_is_kept(world: &World, cluster: &Cluster) {
    let reference = format!("encryptedFile:noop!v:{}", cluster.kubeconfig_in_one_line());
    let body = json!({"name": "redacted", "zoneId": "east", "state": "ACTIVE", "kubeconfigFile": reference});
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!(answer.status, 202, "{answer}");
    world.until("redacted", State::Active).await;
    let read = world.get("/armory/accounts/redacted").await.json["definition"].clone();
    assert_eq!(read["kubeconfigFile"], "encryptedFile:noop!v:redacted");
    let answer = world.rest("PUT", "/armory/accounts/dynamic", &read).await;
    assert_eq!(answer.status, 202, "{answer}");
    let account = world.object("redacted").await.expect("it is there");
    assert_eq!(account.spec.kubeconfig.reference.as_deref(), Some(reference.as_str()));
    assert_eq!(account.metadata.generation, Some(1), "nothing has changed");
}

async fn rest_accepts_a_reference_wherever_it_accepts_a_file(world: &World, cluster: &Cluster) {
    let (accounts, dynamic) = ("/armory/accounts", "/armory/accounts/dynamic");
    let reference = |name: &str| format!("encryptedFile:k8s!n:{name}!k:kubeconfig");
    let stored = async || world.object("prod").await.expect("it is there").spec.kubeconfig;
    let contents = json!({"name": "prod", "zoneId": "west", "kubeconfigContents": cluster.kubeconfig()});
    for (method, path, body, expected) in [
        ("POST", dynamic, contents, None),
        ("PUT", dynamic, json!({"name": "prod", "kubeconfigFile": reference("one")}), Some("one")),
        (
            "PATCH",
            accounts,
            json!([{"name": "prod", "state": "ACTIVE", "kubeconfigFile": reference("two")}]),
            Some("two"),
        ),
    ] {
        let answer = world.rest(method, path, &body).await;
        assert_eq!(answer.status, 202, "{method}: {answer}");
        let kubeconfig = stored().await;
        assert_eq!(kubeconfig.reference, expected.map(reference), "{method}");
        assert_eq!(kubeconfig.secret_ref.is_some(), expected.is_none(), "{method}: one source stands alone");
        assert_eq!(kubeconfig.file, None, "{method}");
    }
    let beside = json!({"name": "prod", "kubeconfigAgent": reference("three")});
    let answer = world.rest("PUT", dynamic, &beside).await;
    assert_eq!(answer.status, 202, "{answer}");
    let agents = world.object("prod").await.expect("it is there").spec.agent_kubeconfig;
    assert_eq!(agents.and_then(|source| source.reference), Some(reference("three")));
    let secret = world.api::<Secret>().get_opt("prod-kubeconfig").await.expect("the API server runs");
    assert_eq!(secret, None, "nothing uses the Secret of the first kubeconfig any more");
    for (method, path, body) in [
        ("POST", dynamic, json!({"name": "new", "kubeconfigFile": "encryptedFile:k8s!n:a!k:CANARY!"})),
        ("PUT", dynamic, json!({"name": "prod", "kubeconfigFile": "encrypted:noop!CANARY"})),
        (
            "PATCH",
            accounts,
            json!([{"name": "prod", "state": "ACTIVE", "kubeconfigFile": "secret://noop?w=CANARY"}]),
        ),
    ] {
        let answer = world.rest(method, path, &body).await;
        assert_eq!(answer.status, 400, "{method}: {answer}");
        let told = answer.json["message"].as_str().unwrap_or_default();
        assert!(
            told.contains("kubeconfigFile must be a secret reference") && !told.contains("CANARY"),
            "{told}"
        );
    }
    assert_eq!(stored().await.reference, Some(reference("two")));
    assert!(world.object("new").await.is_none());
}
