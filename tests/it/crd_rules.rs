//! What the API server accepts and refuses by the custom resource definitions alone, before any operator sees
//! it.

mod migrations;

use futures::{StreamExt as _, stream};

use crate::world::install_definitions;
use kubesvc_testkit::controlplane::{self, ControlPlane};
use kubesvc_testkit::kubectl::Output;

/// Specs that are refused: a name, the spec in YAML, and what the message must contain.
const BAD: &[(&str, &str, &str)] = &[
    ("no-kubeconfig", "zoneId: east", "spec.kubeconfig"),
    ("empty-kubeconfig", "kubeconfig: {}", "exactly one of secretRef"),
    ("no-service-account", "kubeconfig: {serviceAccount: false}", "exactly one of secretRef"),
    ("two-sources", "kubeconfig: {file: /a, serviceAccount: true}", "exactly one of secretRef"),
    ("two-more", "kubeconfig: {secretRef: {name: s}, reference: 'encrypted:x!y'}", "exactly one of"),
    ("secret-unnamed", "kubeconfig: {secretRef: {key: k}}", "spec.kubeconfig.secretRef.name"),
    ("secret-empty", "kubeconfig: {secretRef: {name: ''}}", "spec.kubeconfig.secretRef.name"),
    ("secret-capital", "kubeconfig: {secretRef: {name: Prod}}", "spec.kubeconfig.secretRef.name"),
    ("key-empty", "kubeconfig: {secretRef: {name: s, key: ''}}", "spec.kubeconfig.secretRef.key"),
    ("key-slash", "kubeconfig: {secretRef: {name: s, key: a/b}}", "spec.kubeconfig.secretRef.key"),
    ("reference-empty", "kubeconfig: {reference: ''}", "spec.kubeconfig.reference"),
    ("reference-plain", "kubeconfig: {reference: my-token}", "spec.kubeconfig.reference: Invalid value"),
    ("reference-control", r#"kubeconfig: {reference: "encrypted:x!\n"}"#, "reference must not"),
    ("file-empty", "kubeconfig: {file: ''}", "spec.kubeconfig.file"),
    ("file-relative", "kubeconfig: {file: kube/config}", "file must be an absolute path"),
    ("file-up", "kubeconfig: {file: /a/../b}", "file must not contain .."),
    ("file-control", r#"kubeconfig: {file: "/a\tb"}"#, "file must not contain control"),
    ("agents-empty", "KC\nagentKubeconfig: {}", "spec.agentKubeconfig"),
    ("agents-two", "KC\nagentKubeconfig: {file: /a, serviceAccount: true}", "exactly one of secretRef"),
    ("agents-file-up", "KC\nagentKubeconfig: {file: /a/../b}", "spec.agentKubeconfig.file"),
    (
        "agents-context",
        "context: c\nKC\nagentKubeconfig: {serviceAccount: true}",
        "spec.context has no meaning with spec.agentKubeconfig.serviceAccount",
    ),
    ("source-unknown", "kubeconfig: {contents: abc}", "spec.kubeconfig.contents"),
    ("zone-empty", "zoneId: ''\nKC", "spec.zoneId"),
    ("zone-long", "zoneId: LONG\nKC", "spec.zoneId"),
    ("zone-line-break", "zoneId: \"a\\nb\"\nKC", "spec.zoneId must not contain control characters"),
    ("zone-last-line-break", "zoneId: \"a\\n\"\nKC", "spec.zoneId must not contain control characters"),
    ("zone-del", "zoneId: \"a\\x7f\"\nKC", "spec.zoneId must not contain control characters"),
    ("zone-c1", "zoneId: \"a\\u0085\"\nKC", "spec.zoneId must not contain control characters"),
    ("zone-number", "zoneId: 5\nKC", "spec.zoneId"),
    ("name-empty", "accountName: ''\nKC", "spec.accountName"),
    ("name-long", "accountName: LONG\nKC", "spec.accountName"),
    ("name-nul", "accountName: \"a\\0\"\nKC", "spec.accountName must not contain control characters"),
    ("name-tab", "accountName: \"a\\tb\"\nKC", "spec.accountName must not contain control characters"),
    ("state-small", "state: active\nKC", "spec.state"),
    ("state-unknown", "state: DELETED\nKC", "spec.state"),
    (
        "both-namespaces",
        "namespaces: [a]\nomitNamespaces: [b]\nKC",
        "spec.namespaces and spec.omitNamespaces",
    ),
    ("both-kinds", "kinds: [pod]\nomitKinds: [job]\nKC", "spec.kinds and spec.omitKinds"),
    (
        "only-namespaced",
        "onlyNamespacedResources: true\nKC",
        "spec.onlyNamespacedResources needs spec.namespaces",
    ),
    (
        "only-namespaced-empty",
        "onlyNamespacedResources: true\nnamespaces: []\nKC",
        "spec.onlyNamespacedResources needs spec.namespaces",
    ),
    ("namespace-empty", "namespaces: ['']\nKC", "spec.namespaces[0]"),
    ("namespace-capital", "namespaces: [a, Prod]\nKC", "spec.namespaces[1]"),
    ("omitted-capital", "omitNamespaces: [Prod]\nKC", "spec.omitNamespaces[0]"),
    ("kind-empty", "kinds: ['']\nKC", "spec.kinds[0]"),
    ("omitted-kind-empty", "omitKinds: ['']\nKC", "spec.omitKinds[0]"),
    ("context-empty", "context: ''\nKC", "spec.context"),
    ("context-control", "context: \"a\\u0001\"\nKC", "spec.context must not contain control characters"),
    ("context-own", "context: c\nkubeconfig: {serviceAccount: true}", "spec.context has no meaning"),
    (
        "permission-execute",
        "permissions: {EXECUTE: [a]}\nKC",
        "spec.permissions may have only READ and WRITE",
    ),
    ("permission-small", "permissions: {read: [a]}\nKC", "spec.permissions may have only READ and WRITE"),
    ("permission-empty", "permissions: {READ: ['']}\nKC", "spec.permissions.READ[0]"),
    ("permission-text", "permissions: {READ: a}\nKC", "spec.permissions.READ"),
    ("spinnaker-kind", "customResources: [{kubernetesKind: A.b, spinnakerKind: pods}]\nKC", "spinnakerKind"),
    (
        "priority-word",
        "customResources: [{kubernetesKind: A.b, deployPriority: high}]\nKC",
        "deployPriority must be",
    ),
    ("priority-empty", "customResources: [{kubernetesKind: A.b, deployPriority: ''}]\nKC", "deployPriority"),
    ("treated-unnamed", "customResources: [{versioned: true}]\nKC", "spec.customResources[0].kubernetesKind"),
    (
        "treated-empty",
        "customResources: [{kubernetesKind: ''}]\nKC",
        "spec.customResources[0].kubernetesKind",
    ),
    (
        "exposed-empty",
        "customResourceDefinitions: [{kind: ''}]\nKC",
        "spec.customResourceDefinitions[0].kind",
    ),
    (
        "exposed-scope",
        "customResourceDefinitions: [{kind: A.b, scope: Global}]\nKC",
        "spec.customResourceDefinitions[0].scope",
    ),
    ("age-negative", "maxResumableResourceAgeMs: -1\nKC", "spec.maxResumableResourceAgeMs"),
    ("age-huge", "maxResumableResourceAgeMs: 86400001\nKC", "spec.maxResumableResourceAgeMs"),
    ("age-text", "maxResumableResourceAgeMs: 5m\nKC", "spec.maxResumableResourceAgeMs"),
    ("environment-empty", "environment: ''\nKC", "spec.environment"),
    ("type-empty", "accountType: ''\nKC", "spec.accountType"),
    ("insecure-text", "insecure: 'yes'\nKC", "spec.insecure"),
    ("unknown-field", "zone: east\nKC", "spec.zone"),
];

/// Specs that are accepted.
const GOOD: &[(&str, &str)] = &[
    ("least", "KC"),
    ("key", "kubeconfig: {secretRef: {name: my.secret-1, key: kube_config.yaml}}"),
    ("encrypted-file", "kubeconfig: {reference: 'encryptedFile:k8s!n:prod!k:kubeconfig'}"),
    ("encrypted", "kubeconfig: {reference: 'encrypted:vault!e:x!n:y!k:z'}"),
    ("secret-uri", "kubeconfig: {reference: 'secret://vault?e=x&k=y'}"),
    ("file", "kubeconfig: {file: /kubeconfigfiles/prod..yaml}"),
    ("own", "kubeconfig: {serviceAccount: true}"),
    ("not-own", "kubeconfig: {secretRef: {name: s}, serviceAccount: false}"),
    ("unicode", "accountName: 'Köln 東京 🦀/a'\nzoneId: 'zone ü🦀_ns'\nenvironment: 'пр'\nKC"),
    ("crabs", "accountName: CRABS\nKC"),
    ("long", "accountName: LONGEST\nzoneId: LONGEST\nKC"),
    ("inactive", "state: INACTIVE\nzoneId: east_ns\nKC"),
    ("namespaces", "namespaces: [a, b-1]\nonlyNamespacedResources: true\nomitNamespaces: []\nKC"),
    ("omitted", "omitNamespaces: [kube-system]\nomitKinds: [event]\nKC"),
    (
        "flags",
        "insecure: false\nmetrics: true\nnoProxy: true\nonlySpinnakerManaged: true\nmaxResumableResourceAgeMs: 0\nKC",
    ),
    ("roles", "permissions: {READ: [a, 'ü'], WRITE: []}\naccountType: prod\nKC"),
    ("exposed", "customResourceDefinitions: [{kind: Foo.example.com}, {kind: Bar.b, scope: Cluster}]\nKC"),
    (
        "treated",
        "customResources: [{kubernetesKind: Foo.example.com, spinnakerKind: serverGroups, deployPriority: '100', versioned: true, namespaced: false}]\nKC",
    ),
    ("context", "context: 'admin@prod'\nkinds: [deployment, Foo.example.com]\nKC"),
];

/// The shared control plane with the definitions installed.
async fn plane() -> &'static ControlPlane {
    let plane = controlplane::shared().await;
    install_definitions(plane).await;
    plane
}

fn manifest(namespace: &str, name: &str, spec: &str) -> String {
    let spec = spec
        .replace("KC", "kubeconfig: {secretRef: {name: s}}")
        .replace("CRABS", &"🦀".repeat(255))
        .replace("LONGEST", &"x".repeat(255))
        .replace("LONG", &"x".repeat(256));
    let spec = spec.lines().map(|line| format!("  {line}\n")).collect::<String>();
    format!(
        "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n{spec}"
    )
}

async fn apply(namespace: &str, name: &str, spec: &str) -> Output {
    let text = manifest(namespace, name, spec);
    controlplane::shared().await.kubectl_with_input(["apply", "-f", "-"], &text).await
}

async fn patch(namespace: &str, name: &str, change: &str) -> Output {
    controlplane::shared()
        .await
        .kubectl(["patch", "ksa", name, "-n", namespace, "--type=merge", "-p", change])
        .await
}

fn refused(what: &str, output: Output, part: &str) -> Option<String> {
    match output.ok() {
        Ok(answer) => Some(format!("{what} is taken: {answer}")),
        Err(message) if !message.contains(part) => Some(format!("{what} does not say {part:?}: {message}")),
        Err(_) => None,
    }
}

#[tokio::test]
async fn bad_accounts_are_refused_with_a_message_that_names_the_field() {
    let namespace = plane().await.namespace().await.to_string();
    let wrong: Vec<String> = stream::iter(BAD)
        .map(|(name, spec, part)| async { refused(name, apply(&namespace, name, spec).await, part) })
        .buffered(4)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(BAD.len() >= 35);
}

#[tokio::test]
async fn valid_accounts_are_accepted() {
    let namespace = plane().await.namespace().await.to_string();
    let wrong: Vec<String> = stream::iter(GOOD)
        .map(|(name, spec)| async { apply(&namespace, name, spec).await.ok().err() })
        .buffered(4)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(GOOD.len() >= 15);
}

#[tokio::test]
async fn updates_are_validated_too() {
    let namespace = plane().await.namespace().await.to_string();
    let start =
        "accountName: Prod\nzoneId: east\nonlyNamespacedResources: true\nnamespaces: [a]\ncontext: c\nKC";
    apply(&namespace, "named", start).await.ok().expect("taken");
    apply(&namespace, "unnamed", "KC").await.ok().expect("taken");
    let cannot_change = "spec.accountName cannot be changed";
    let bad = [
        ("named", r#"{"spec":{"accountName":"prod"}}"#, cannot_change),
        ("named", r#"{"spec":{"accountName":null}}"#, cannot_change),
        ("unnamed", r#"{"spec":{"accountName":"unnamed"}}"#, cannot_change),
        ("named", r#"{"spec":{"namespaces":null}}"#, "spec.onlyNamespacedResources needs spec.namespaces"),
        ("named", r#"{"spec":{"kubeconfig":null}}"#, "spec.kubeconfig"),
        ("named", r#"{"spec":{"kubeconfig":{"secretRef":null}}}"#, "exactly one of secretRef"),
        ("named", r#"{"spec":{"kubeconfig":{"file":"/a"}}}"#, "exactly one of secretRef"),
        ("named", r#"{"spec":null}"#, "spec"),
    ];
    for (name, change, part) in bad {
        assert_eq!(refused(change, patch(&namespace, name, change).await, part), None);
    }
    let good = [
        r#"{"spec":{"zoneId":null}}"#,
        r#"{"spec":{"zoneId":"west"}}"#,
        r#"{"spec":{"state":"INACTIVE"}}"#,
        r#"{"spec":{"context":null}}"#,
        r#"{"spec":{"kubeconfig":{"secretRef":null,"serviceAccount":true}}}"#,
        r#"{"spec":{"onlyNamespacedResources":null,"namespaces":null,"omitNamespaces":["b"]}}"#,
        r#"{"spec":{"accountName":"Prod"}}"#,
    ];
    for change in good {
        patch(&namespace, "named", change).await.ok().expect(change);
    }
}

#[tokio::test]
async fn account_without_operator_has_a_status_that_says_so() {
    let plane = plane().await;
    let namespace = plane.namespace().await.to_string();
    apply(&namespace, "new", "KC").await.ok().expect("taken");
    let status = plane
        .kubectl(["get", "ksa", "new", "-n", &namespace, "-o", "jsonpath={.status}"])
        .await
        .ok()
        .expect("there");
    assert_eq!(status, r#"{"observedGeneration":-1}"#);
}

#[tokio::test]
async fn kubectl_explains_and_lists_accounts() {
    let plane = plane().await;
    let namespace = plane.namespace().await.to_string();
    apply(&namespace, "a", "zoneId: east\nKC").await.ok().expect("taken");
    let explained = plane.kubectl(["explain", "ksa.spec.kubeconfig"]).await.ok().expect("explained");
    for part in ["exactly one", "secretRef", "reference", "serviceAccount", "A Secret in the namespace"] {
        assert!(explained.contains(part), "{part} is not in {explained}");
    }
    let whole = plane.kubectl(["explain", "ksa", "--recursive"]).await.ok().expect("explained");
    assert!(whole.contains("An account: one Kubernetes cluster"), "{whole}");
    let table = plane.kubectl(["get", "ksa", "-n", &namespace]).await.ok().expect("listed");
    let head: Vec<_> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(head, ["NAME", "STATE", "ZONE", "AGENTS", "KUBE-VERSION", "RETRIES", "AGE"]);
    let wide = plane.kubectl(["get", "ksa", "-n", &namespace, "-o", "wide"]).await.ok().expect("listed");
    assert!(wide.lines().next().is_some_and(|head| head.ends_with("MESSAGE")), "{wide}");
    plane.kubectl(["get", "spinnaker", "-n", &namespace]).await.ok().expect("the category");
    plane.kubectl(["get", "ksg", "-n", &namespace]).await.ok().expect("the agents");
}
