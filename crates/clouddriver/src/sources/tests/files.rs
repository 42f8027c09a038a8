//! Spring's rules, and what Halyard and the Spinnaker operator write.

use super::*;

#[test]
fn a_list_is_taken_whole_from_the_highest_file_that_has_it() {
    let list = |names: &[&str]| {
        let accounts: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        json!({ "kubernetes": { "accounts": accounts } }).to_string()
    };
    let all = [
        file("/c/clouddriver-local.yml", &list(&["local"])),
        file("/c/spinnaker-local.yml", &list(&["spinnaker-local"])),
        file("/c/clouddriver-prod.yml", &list(&["prod"])),
        file("/c/clouddriver.yml", &list(&["base"])),
        file("/c/spinnaker.yml", &list(&["spinnaker"])),
    ];
    let profiles = ["prod".to_owned()];
    let read = |files: &[NamedText]| {
        let read = read_files(&source("f"), files, &profiles, &BTreeMap::new()).expect("readable");
        names(&read).join(",")
    };
    assert_eq!(read(&all), "local");
    assert_eq!(read(&all[1..]), "spinnaker-local");
    assert_eq!(read(&all[2..]), "prod");
    assert_eq!(read(&all[3..]), "base");
    assert_eq!(read(&all[4..]), "spinnaker");
    // An empty list is a list.
    let emptied = file("clouddriver-local.yml", "kubernetes.accounts: []");
    assert_eq!(read(&[all[3].clone(), emptied]), "");
    // A file without the list leaves it to the others.
    let other = file("clouddriver-local.yml", "kubernetes: {enabled: true}");
    assert_eq!(read(&[all[3].clone(), other]), "base");
}

#[test]
fn files_are_recognized_by_name_and_profile() {
    let profiles = ["prod".to_owned()];
    for name in ["spinnaker.yml", "clouddriver.yaml", "clouddriver-local.yml", "a/clouddriver-prod.yml"] {
        assert!(is_spring_file(name, &profiles), "{name}");
    }
    for name in ["clouddriver-test.yml", "gate.yml", "clouddriver.json", "clouddriverx.yml", "kubeconfig"] {
        assert!(!is_spring_file(name, &profiles), "{name}");
    }
}

#[test]
fn names_are_relaxed_and_values_have_the_type_of_their_field() {
    let read = accounts(
        "  - NAME: 007\n    kube-config_File: ${HOME:/home}/x\n    my-own-field: '1'\n    only-spinnaker-managed: 'yes'\n\
         \x20   cacheThreads: '4'\n    namespaces: a, b\n    omit-kinds: [podPreset]\n    permissions: {read: [dev], Write: ops}\n\
         \x20   customResources:\n      - kubernetes-kind: Rollout.argoproj.io\n        versioned: off\n        deployPriority: 90\n",
    );
    assert_eq!(reasons(&read), [""; 0]);
    let expected = json!({
        "name": "007",
        // No field of Clouddriver: as it is.
        "my-own-field": "1",
        "kubeconfigFile": "/home/x",
        "onlySpinnakerManaged": true,
        "cacheThreads": 4,
        "namespaces": ["a", "b"],
        "omitKinds": ["podPreset"],
        "permissions": {"READ": ["dev"], "WRITE": ["ops"]},
        "customResources": [{"kubernetesKind": "Rollout.argoproj.io", "versioned": false, "deployPriority": "90"}],
    });
    assert_eq!(Value::Object(definition(&read, "007").clone()), expected);
}

#[test]
fn keys_with_dots_and_indexes_are_lists() {
    for yaml in [
        "kubernetes.accounts[0].name: a\nkubernetes.accounts[1].name: b\nkubernetes.accounts[1].namespaces[0]: x\n",
        "kubernetes:\n  accounts:\n    0: {name: a}\n    1: {name: b, namespaces: {0: x}}\n",
        "kubernetes:\n  accounts:\n    '0': {name: a}\n    '1': {name: b, namespaces: {'0': x}}\n",
        "KUBERNETES:\n  accounts: [{name: a}, {name: b, namespaces: [x]}]\n",
    ] {
        let read = read(&[file("clouddriver.yml", yaml)]);
        assert_eq!(names(&read), ["a", "b"], "{yaml}");
        assert_eq!(definition(&read, "b")["namespaces"], json!(["x"]), "{yaml}");
    }
    let gap = read(&[file("clouddriver.yml", "kubernetes.accounts: {0: {name: a}, 2: {name: b}}")]);
    assert_eq!((names(&gap), gap.gap()), (vec!["a", "b"], None));
    assert_eq!(reasons(&gap), ["kubernetes.accounts[1]: it is missing; Spring refuses a list with a gap"]);
}

#[test]
fn placeholders_come_from_variables_then_files_then_the_default() {
    let files = [
        file(
            "spinnaker.yml",
            "zone: {name: from-file}\nchain: ${zone.name}-x\nboth: file\nb: '${a}'\na: '${b}'\nself: ${self}\n",
        ),
        file(
            "clouddriver.yml",
            "kubernetes:\n  accounts:\n  - name: ${zone.name}\n  - name: ${chain}\n  - name: ${both}\n  - name: ${absent:plain}\n\
             \x20 - name: ${absent:${zone.name}}-y\n  - name: ${${which}.name}\n  - name: ${kubernetes.accounts[3].name}-z\n\
             \x20 - name: lone ${brace\n  - {name: q, environment: '${b}'}\n  - {name: r, environment: '${self}'}\n\
             \x20 - {name: s, context: '${GONE}'}\n  - {name: t, kubeconfigContents: 'token ${hunter2}'}\n  - name: ${GONE}\n",
        ),
    ];
    let vars = vars(&[("both", "variable"), ("which", "zone")]);
    let read = read_files(&source("f"), &files, &[], &vars).expect("readable");
    let expected = [
        "from-file",
        "from-file-x",
        "variable",
        "plain",
        "from-file-y",
        "from-file",
        "plain-z",
        "lone ${brace",
    ];
    assert_eq!(names(&read), expected);
    let reasons = reasons(&read);
    assert!(reasons[0].contains("account \"q\"") && reasons[0].contains("refers to itself"), "{reasons:?}");
    assert!(reasons[1].contains("${self} that refers to itself"), "{reasons:?}");
    assert!(reasons[2].contains("context has a placeholder ${GONE} without a value"), "{reasons:?}");
    assert!(reasons[3].contains("kubesvc.clouddriver.vars"), "{reasons:?}");
    assert!(!reasons.join("").contains("hunter2"), "a part of a credential: {reasons:?}");
    // The last one may be any account.
    assert_eq!(reasons.len(), 5);
    assert!(read.gap().is_some_and(|why| why.contains("kubernetes.accounts[12]")), "{:?}", read.gap());
}

#[test]
fn documents_of_other_profiles_do_not_count() {
    let yaml = "kubernetes.accounts: [{name: base}]\n---\nspring.config.activate.on-profile: prod\n\
                kubernetes.accounts: [{name: prod}]\n---\nspring: {profiles: '!prod, other'}\nkubernetes.accounts: [{name: not-prod}]\n---\n";
    let read = |profiles: &[&str]| {
        let profiles: Vec<_> = profiles.iter().map(|one| (*one).to_owned()).collect();
        read_files(&source("f"), &[file("clouddriver.yml", yaml)], &profiles, &BTreeMap::new())
    };
    assert_eq!(names(&read(&["prod"]).expect("readable")), ["prod"]);
    assert_eq!(names(&read(&[]).expect("readable")), ["not-prod"]);
    let expression = file("clouddriver.yml", "spring.config.activate.on-profile: a & b\n");
    let why = read_files(&source("f"), &[expression], &[], &BTreeMap::new()).expect_err("an expression");
    assert!(why.to_string().contains("clouddriver.yml: the profile of a document is an expression"), "{why}");
}

/// As `hal deploy apply` writes it.
const HALYARD: &str = "## WARNING
## This file was autogenerated, and _will_ be overwritten by Halyard.
server:
  port: ${services.clouddriver.port:7002}
  address: ${services.clouddriver.host:localhost}
kubernetes:
  enabled: true
  accounts:
  - name: prod
    requiredGroupMembership: []
    providerVersion: V2
    permissions: {}
    dockerRegistries: []
    configureImagePullSecrets: true
    cacheThreads: 1
    namespaces: []
    omitNamespaces: []
    kinds: []
    omitKinds: []
    customResources: []
    cachingPolicies: []
    kubeconfigFile: /home/spinnaker/.hal/default/staging/dependencies/1-kubeconfig
    oAuthScopes: []
    onlySpinnakerManaged: false
  primaryAccount: prod
";

/// As the Spinnaker operator writes it into the Secret `spin-clouddriver-files`.
const OPERATOR: &str = "kubernetes:
  accounts:
  - kubeconfigFile: encryptedFile:k8s!n:kube!k:config
    name: spinnaker
    permissions:
      READ:
      - dev
      WRITE:
      - dev
  enabled: true
spinnaker:
  s3:
    enabled: true
";

#[test]
fn output_of_halyard_and_of_the_spinnaker_operator_is_read() {
    let halyard = read(&[file("clouddriver.yml", HALYARD)]);
    assert_eq!((names(&halyard), halyard.gap()), (vec!["prod"], None));
    let prod = definition(&halyard, "prod");
    assert_eq!(prod["permissions"], json!({}));
    assert_eq!(prod["namespaces"], json!([]));
    assert_eq!(prod["kubeconfigFile"], "/home/spinnaker/.hal/default/staging/dependencies/1-kubeconfig");
    let operator = read(&[file("clouddriver.yml", OPERATOR)]);
    let spinnaker = definition(&operator, "spinnaker");
    assert_eq!(spinnaker["permissions"], json!({"READ": ["dev"], "WRITE": ["dev"]}));
    assert_eq!(spinnaker["kubeconfigFile"], "encryptedFile:k8s!n:kube!k:config");
}

#[test]
fn anchors_and_merge_keys_are_written_out() {
    let read = read(&[file(
        "clouddriver.yml",
        "base: &base {namespaces: [a], permissions: {READ: [dev]}}\nkubernetes:\n  accounts:\n\
         \x20 - {<<: *base, name: one}\n  - {<<: *base, name: two, namespaces: [b]}\n",
    )]);
    assert_eq!(definition(&read, "one")["namespaces"], json!(["a"]));
    assert_eq!(definition(&read, "two")["namespaces"], json!(["b"]));
    assert_eq!(definition(&read, "two")["permissions"], json!({"READ": ["dev"]}));
}

#[test]
fn version_of_an_entry_changes_with_it_alone() {
    let version = |yaml: &str| accounts(yaml).entries[0].version.clone();
    let plain = version("  - {name: a, namespaces: [x]}");
    assert_eq!(plain, version("  - {namespaces: [x], name: 'a'}\n  - name: b"));
    assert_ne!(plain, version("  - {name: a, namespaces: [y]}"));
}
