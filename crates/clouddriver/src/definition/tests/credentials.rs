//! Where the kubeconfig of an entry is found.

use secrecy::{ExposeSecret, SecretString};

use super::*;

fn kubeconfig(user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \
         'https://cluster.example:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: \
         {{cluster: c, user: u}}}}]\n"
    )
}

fn roots() -> Vec<FileRoot> {
    let root = |from: &str, to| FileRoot { from: from.to_owned(), to };
    let secret = |namespace: &str, name: &str| RootTarget::Secret {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    vec![
        root("/home/spinnaker", RootTarget::Folder("/mnt/home/".to_owned())),
        root("/home/spinnaker/.kube/", RootTarget::Agent("/kubeconfigfiles".to_owned())),
        root("/secrets", secret("spinnaker", "files")),
        root("/secrets/other", secret("elsewhere", "others")),
        root("/one/config", RootTarget::Folder("/mnt/one".to_owned())),
    ]
}

fn of_path(path: &str) -> Conversion {
    let settings = ConversionSettings { file_roots: &roots(), ..SETTINGS };
    convert(&entry(&json!({"kubeconfigFile": path})), &Choice::default(), settings)
}

/// Kind of the credential, and the source in the spec.
fn mapped(path: &str) -> (&'static str, Value) {
    let MigratedAccount { object, credential } =
        of_path(path).account.unwrap_or_else(|refusal| unreachable!("{refusal}"));
    (credential.kind(), serde_json::to_value(object.spec.kubeconfig).expect("JSON"))
}

#[test]
fn a_path_is_mapped_by_the_longest_root_that_can_have_it() {
    let owned = json!({"secretRef": {"name": "prod-kubeconfig"}});
    assert_eq!(mapped("/home/spinnaker/x/config"), ("mounted file", owned.clone()));
    let file = json!({"file": "/kubeconfigfiles/a/prod"});
    assert_eq!(mapped("/home/spinnaker/.kube/a/prod"), ("file on the agent", file.clone()));
    assert_eq!(mapped("/home//spinnaker/./.kube/a/prod"), ("file on the agent", file));
    assert_eq!(
        mapped("/secrets/prod.yaml"),
        ("Secret", json!({"secretRef": {"name": "files", "key": "prod.yaml"}}))
    );
    assert_eq!(
        mapped("/secrets/other/prod"),
        ("Secret", json!({"reference": "encryptedFile:k8s!n:others!k:prod!ns:elsewhere"}))
    );
    assert_eq!(mapped("/one/config"), ("mounted file", owned.clone()));
    for unmapped in [
        "/home/spinnakerx/config",
        "/secrets/a/b",
        "/secrets",
        "/secrets/ä",
        "/secrets/other/a/b",
        "configserver:prod",
        "~/.kube/config",
    ] {
        assert_eq!(mapped(unmapped), ("file on Clouddriver", owned.clone()), "{unmapped}");
    }
    for text in [
        "home/spinnaker/config",
        r#"{"apiVersion":"v1","users":[{"user":{"token":"hunter2"}}]}"#,
        "https://me:hunter2@host/kubeconfig",
        "/kubeconfig?token=hunter2",
    ] {
        let refusal = of_path(text).account.err().expect(text).to_string();
        assert!(refusal.contains("is no path") && !refusal.contains("hunter2"), "{refusal}");
    }
    let path = of_path("/home/spinnaker/x/config").account.map(|account| account.credential);
    assert!(matches!(path, Ok(EntryCredential::MountedFile(path)) if path == "/mnt/home/x/config"));
    let file = of_path("/one/config").account.map(|account| account.credential);
    assert!(matches!(file, Ok(EntryCredential::MountedFile(path)) if path == "/mnt/one"));
}

#[test]
fn a_path_that_leaves_its_folder_is_refused() {
    for path in ["/home/spinnaker/../x", "..", "/unmapped/../x", "/home/spinnaker/.kube/.."] {
        let refusal = of_path(path).account.err().expect("refused");
        assert!(refusal.to_string().contains("must not contain .."), "{refusal}");
    }
    for path in ["/a\nb".to_owned(), format!("/{}", "x".repeat(1024))] {
        assert!(of_path(&path).account.is_err());
    }
}

#[test]
fn a_file_that_only_clouddriver_has_is_an_inactive_account_that_says_so() {
    let MigratedAccount { mut object, .. } = account(&json!({"kubeconfigFile": "/home/x/config"}));
    assert_eq!(object.spec.state, Some(DesiredState::Inactive));
    let message = file_on_clouddriver(&object).expect("it is one");
    for part in
        ["/home/x/config", "kubesvc.clouddriver.fileRoots", "spinnaker/prod-kubeconfig", "spec.kubeconfig"]
    {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(restored(&object)["kubeconfigFile"], "/home/x/config");
    object.spec.kubeconfig = EntryCredential::AgentFile("/opt/x".to_owned()).in_spec("spinnaker", "prod");
    assert_eq!(file_on_clouddriver(&object), None, "its spec names another source");
    let contents = account(&json!({"kubeconfigContents": kubeconfig("{token: t}")})).object;
    assert_eq!(file_on_clouddriver(&contents), None);
}

#[test]
fn contents_go_beside_the_object_and_a_file_goes_before_them() {
    let contents = kubeconfig("{token: t0ps3cret}");
    let MigratedAccount { object, credential } = account(&json!({"kubeconfigContents": contents}));
    assert!(matches!(&credential, EntryCredential::Contents(given) if given.expose_secret() == contents));
    assert_eq!(
        object.spec.kubeconfig.secret_ref.as_ref().map(|secret| secret.name.as_str()),
        Some("prod-kubeconfig")
    );
    assert!(!format!("{object:?}").contains("t0ps3cret"));
    let both = json!({"kubeconfigContents": contents, "kubeconfigFile": "encryptedFile:vault!e:a!k:b"});
    let MigratedAccount { object, credential } = account(&both);
    assert_eq!(credential.kind(), "reference");
    assert!(!format!("{object:?}").contains("t0ps3cret"));
    let reference = account(&json!({"kubeconfigContents": "secret://vault?e=a&k=b"}));
    assert_eq!(reference.object.spec.kubeconfig.reference.as_deref(), Some("secret://vault?e=a&k=b"));
}

#[test]
fn a_bad_credential_is_a_blocker_that_shows_no_value() {
    for (definition, reason, part) in [
        (
            json!({"kubeconfigContents": kubeconfig("{exec: {command: s3cret}}")}),
            Reason::ExecForbidden,
            "exec",
        ),
        (
            json!({"kubeconfigContents": kubeconfig("{auth-provider: {name: s3cret}}")}),
            Reason::ExecForbidden,
            "auth-provider",
        ),
        (
            json!({"kubeconfigContents": kubeconfig("{tokenFile: s3cret}")}),
            Reason::KubeconfigRefused,
            "tokenFile",
        ),
        (json!({"kubeconfigContents": "s3cret"}), Reason::KubeconfigRefused, "kubeconfigContents is refused"),
        (json!({"kubeconfigContents": " "}), Reason::InvalidField, "kubeconfigContents must be"),
        (json!({"kubeconfigContents": ["s3cret"]}), Reason::InvalidField, "kubeconfigContents must be"),
        (json!({"kubeconfigFile": "encrypted:noop!s3cret"}), Reason::ReferenceRefused, "secret reference"),
        (json!({"kubeconfigFile": "encrypted:noop!v:redacted"}), Reason::NoCredential, "none of"),
        (json!({}), Reason::NoCredential, "none of"),
        (json!({"serviceAccount": true, "kubeconfigFile": "/s3cret"}), Reason::NotPortable, "own pod"),
        (json!({"serviceAccount": "s3cret"}), Reason::InvalidField, "true or false"),
    ] {
        let refusal = refusal(&definition);
        assert_eq!(refusal.reason(), reason, "{refusal}");
        let said = refusal.to_string();
        assert!(said.contains(part) && !said.contains("s3cret"), "{said}");
    }
}

#[test]
fn the_choice_of_a_request_or_rule_goes_before_the_entry() {
    let of = |definition: &Value, zone: Option<&str>, source| {
        let choice = Choice { zone: zone.map(ZoneId::from), source };
        convert(&entry(definition), &choice, SETTINGS).account
    };
    let own = json!({"serviceAccount": true, "context": "c"});
    let account = of(&own, Some("east"), Some(ClusterSource::ServiceAccount))
        .unwrap_or_else(|refusal| unreachable!("{refusal}"));
    assert_eq!(account.object.spec.kubeconfig.service_account, Some(true));
    assert_eq!(account.object.spec.zone_id.as_ref().map(ZoneId::as_str), Some("east"));
    assert_eq!(
        (account.object.spec.context.as_deref(), restored(&account.object)["context"].as_str()),
        (None, Some("c"))
    );
    for (zone, source) in [(Some("east"), None), (None, Some(ClusterSource::ServiceAccount))] {
        let refusal = of(&own, zone, source).err().expect("both are needed");
        assert_eq!(refusal.reason(), Reason::NotPortable);
    }
    let file = || Some(ClusterSource::File("/opt/armory/prod".to_owned()));
    for definition in [&own, &json!({"kubeconfigFile": "/x"}), &json!({})] {
        let account = of(definition, None, file()).unwrap_or_else(|refusal| unreachable!("{refusal}"));
        assert_eq!(account.object.spec.kubeconfig.file.as_deref(), Some("/opt/armory/prod"));
        assert!(account.object.spec.zone_id.is_none());
    }
    let bad = Some(ClusterSource::Contents(SecretString::from(kubeconfig("{exec: {command: x}}"))));
    assert_eq!(of(&own, None, bad).err().map(|refusal| refusal.reason()), Some(Reason::ExecForbidden));
    let relative = Some(ClusterSource::File("kube/config".to_owned()));
    assert_eq!(of(&own, None, relative).err().map(|refusal| refusal.reason()), Some(Reason::InvalidField));
}

#[test]
fn no_credential_of_an_entry_is_in_its_object_or_report() {
    let definition = json!({
        "kubeconfigContents": kubeconfig("{token: CANARY}"), "kubeConfigContents": "CANARY", "kubeconfigAgent": "CANARY",
        "apiToken": "CANARY", "pass_word": "CANARY", "nested": {"list": [{"client-key": "CANARY"}]},
        "note": "-----BEGIN CANARY", "proxy": "http://user:CANARY@proxy", "jwt": "eyJhbGciCANARY",
        "reference": "encrypted:noop!v:CANARY", "lines": "a\nCANARY", "long": format!("{}CANARY", "x".repeat(256)),
        "dsn": "sa:CANARY@db", "connection": "Uid=sa;Pwd=CANARY", "webhook": "https://hooks.example.com/T0/CANARY",
        "flags": "--token=CANARY", "kept": "encrypted:vault!e:a!k:b",
    });
    let conversion = converted(&definition);
    let account = conversion.account.unwrap_or_else(|refusal| unreachable!("{refusal}")).object;
    let shown = format!(
        "{}{:?}{}",
        serde_json::to_string(&account).expect("JSON"),
        conversion.report,
        conversion.hash
    );
    assert!(!shown.contains("CANARY"), "{shown}");
    assert_eq!(restored(&account)["kept"], "encrypted:vault!e:a!k:b");
    assert!(conversion.report.warnings.iter().any(|warning| warning.starts_with("nested is not kept")));
}
