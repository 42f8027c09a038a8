//! The accounts of the agent's own file.

use std::path::Path;

use super::{Files, agent, error};
use crate::settings::{AccountSettings, load};
use kubesvc_core::agent_policy::{AccountPolicy, AgentPolicy};
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, CustomResourceDefinition};
use kubesvc_runtime::config::UnknownKeys;

fn accounts(yaml: &str) -> Vec<AccountSettings> {
    agent(yaml).expect(yaml).settings.accounts
}

/// The only account, with these additional settings.
fn account(settings: &str) -> AccountSettings {
    accounts(&format!("kubernetes:\n  accounts:\n    - name: a\n      serviceAccount: true\n{settings}"))
        .remove(0)
}

#[test]
fn every_setting_of_an_account_is_read() {
    let yaml = "
kubernetes:
  accounts:
    - name: Prod EU
      kubeconfigFile: /k/prod
      context: eu
      insecure: true
      permissions: {READ: [a], WRITE: [b, c]}
      kinds: [deployment]
      namespaces: [x, y]
      onlyNamespacedResources: true
      customResourceDefinitions: [{kind: A.b}, {kind: C.d, scope: Cluster}]
      onlySpinnakerManaged: true
      metrics: true
      maxResumableResourceAgeMs: 60000
      noProxy: true
      policy: {servers: ['*.example:6443'], insecure: true}
    - {name: own, serviceAccount: yes, omitKinds: 'pod, job', omitNamespaces: [kube-system], context: ''}
";
    let accounts = accounts(yaml);
    let definition =
        |kind: &str, cluster_scoped| CustomResourceDefinition { kind: kind.to_owned(), cluster_scoped };
    assert_eq!(
        accounts[0],
        AccountSettings {
            spec: AccountSpec {
                account: Some(AccountRef { name: "Prod EU".to_owned(), ..AccountRef::default() }),
                credential: Some(Credential::File("/k/prod".to_owned())),
                context: "eu".to_owned(),
                insecure: true,
                namespaces: vec!["x".to_owned(), "y".to_owned()],
                omit_namespaces: Vec::new(),
                kinds: vec!["deployment".to_owned()],
                omit_kinds: Vec::new(),
                only_namespaced_resources: true,
                custom_resource_definitions: vec![definition("A.b", false), definition("C.d", true)],
                only_spinnaker_managed: true,
                metrics: true,
                no_proxy: true,
                max_resumable_resource_age_ms: 60_000,
                read_roles: vec!["a".to_owned()],
                write_roles: vec!["b".to_owned(), "c".to_owned()],
            },
            policy: AccountPolicy {
                servers: Some(["*.example:6443".parse().expect("an entry")].into()),
                insecure: Some(true),
                ..AccountPolicy::default()
            },
        }
    );
    let own = &accounts[1].spec;
    assert_eq!((&own.credential, own.context.as_str()), (&Some(Credential::ServiceAccount(true)), ""));
    assert_eq!(accounts[1].policy, AccountPolicy::default());
    assert_eq!((own.omit_kinds.len(), own.omit_namespaces.len()), (2, 1));
}

#[test]
fn the_policy_is_read_and_what_is_no_server_is_refused() {
    let read = agent(
        "kubernetes:\n  policy: {servers: [10.0.0.0/8, 'a.example:1-9'], loopback: no, files: false}\n",
    );
    let policy = read.expect("good settings").settings.policy;
    assert_eq!(
        policy,
        AgentPolicy {
            servers: ["10.0.0.0/8", "a.example:1-9"].map(|entry| entry.parse().expect(entry)).into(),
            loopback: false,
            files: false,
            ..AgentPolicy::default()
        }
    );
    assert_eq!(agent("").expect("no settings").settings.policy, AgentPolicy::default());
    for wrong in ["https://a.example", "a.example:0", "10.0.0.0/40", "'*'"] {
        for origin in [
            "policy: {servers: [WRONG]}",
            "accounts: [{name: a, serviceAccount: true, policy: {servers: [WRONG]}}]",
        ] {
            let error =
                agent(&format!("kubernetes:\n  {}\n", origin.replace("WRONG", wrong))).expect_err(wrong);
            assert!(error.to_string().contains("policy.servers"), "{error}");
        }
    }
}

/// Regression test: a reference was taken for a relative path, and the account was retried forever.
#[test]
fn a_secret_reference_is_the_file_it_names_and_one_of_a_missing_engine_does_not_stop_the_agent() {
    let read = |path: &str| agent(&format!("kubernetes.accounts: [{{name: a, kubeconfigFile: '{path}'}}]\n"));
    for reference in
        ["encryptedFile:file!p:/k/prod", "encrypted:file!p:/k/prod", "secret://file?p=%2Fk%2Fprod"]
    {
        let accounts = read(reference).expect(reference).settings.accounts;
        let file = Some(Credential::File("/k/prod".to_owned()));
        assert_eq!(accounts[0].spec.credential, file, "{reference}");
    }
    for (reference, engine) in [
        ("encryptedFile:k8s!n:CANARY!k:kubeconfig!ns:spinnaker", "encrypted:k8s"),
        ("encryptedFile:s3!r:us!b:CANARY!f:x", "encrypted:s3"),
        ("encrypted:noop!v:CANARY", "encrypted:noop"),
    ] {
        let accounts = read(reference).expect(reference).settings.accounts;
        let named = Some(Credential::File(engine.to_owned()));
        assert_eq!(
            accounts[0].spec.credential, named,
            "the account fails, and its parameters are not passed on"
        );
    }
    for (reference, said) in [
        ("encryptedFile:file!p:CANARY", "no absolute path"),
        ("encryptedFile:file!p:/k/../x", "holds `..`"),
        ("encryptedFile:file!q:/CANARY", "q"),
        ("encryptedFile:file", "parameter"),
    ] {
        let error = read(reference).expect_err(reference).to_string();
        assert!(error.contains(said) && error.contains("kubeconfigFile"), "{reference}: {error}");
        assert!(!error.contains("CANARY"), "{error}");
    }
}

#[test]
fn commands_that_log_in_are_bare_names() {
    let read = |list: &str| agent(&format!("kubernetes.execCommands: {list}\n"));
    assert_eq!(agent("").expect("none").settings.exec_commands.len(), 4);
    assert_eq!(read("[]").expect("none").settings.exec_commands, Vec::<String>::new());
    assert_eq!(read("[my-login]").expect("one").settings.exec_commands, ["my-login"]);
    for wrong in ["[/bin/sh]", "[../aws]", "[.]", "['']"] {
        assert!(read(wrong).expect_err(wrong).to_string().contains("kubernetes.execCommands"), "{wrong}");
    }
}

#[test]
fn roles_stay_as_they_were_written_in_both_shapes() {
    let read = ["007", "true", "1.0", "two words", " padded ", "0x1F"].map(str::to_owned).to_vec();
    let want = (read, vec!["~".to_owned()]);
    let roles_of = |settings: &str| {
        let spec = account(settings).spec;
        (spec.read_roles, spec.write_roles)
    };
    let roles = "[007, true, 1.0, two words, ' padded ', 0x1F]";
    for shape in [
        format!("      permissions:\n        - READ: {roles}\n        - WRITE: ['~']\n"),
        format!("      permissions: [{{READ: {roles}, WRITE: ['~']}}]\n"),
        format!("      permissions:\n        READ: {roles}\n        write: ['~']\n"),
        format!(
            "      permissions:\n        - READ: [007, true]\n        - WRITE: ['~']\n        - READ: {roles}\n"
        ),
    ] {
        assert_eq!(roles_of(&shape), want, "{shape}");
    }
    for empty in
        ["", "      permissions:\n", "      permissions: []\n", "      permissions: {READ: , WRITE: []}\n"]
    {
        assert_eq!(roles_of(empty), Default::default(), "{empty}");
    }
}

#[test]
fn a_relative_kubeconfig_counts_from_the_folder_of_the_settings() {
    let yaml = "kubernetes.accounts: [{name: a, kubeconfigFile: ./keys/a}, {name: b, kubeconfigFile: b}]\n";
    let files = Files::new(&[("armory-agent.yml", yaml)]);
    let of = |dir: &Path| {
        let loaded = load(dir, &|_| None, UnknownKeys::Error).expect("valid");
        loaded.settings.accounts.into_iter().map(|account| account.spec.credential).collect::<Vec<_>>()
    };
    let below = |root: &Path| {
        ["keys/a", "b"].map(|path| Some(Credential::File(root.join(path).display().to_string())))
    };
    assert_eq!(of(files.root()), below(files.root()));
    std::fs::create_dir(files.path("keys")).expect("a folder");
    let real = std::fs::canonicalize(files.root()).expect("a folder");
    assert_eq!(of(&files.path("keys/..")), below(&real), "the folder itself may be named with `..`");
}

#[test]
fn a_bad_account_is_an_error_with_file_line_and_key() {
    let long = "x".repeat(256);
    let kinds = "'a.b', ".repeat(1001);
    let good = "name: a, serviceAccount: true";
    let cases: &[(String, &str)] = &[
        ("- {}".into(), "3: `kubernetes.accounts[0].name` is missing; every account needs a name"),
        ("-".into(), "3: `kubernetes.accounts[0].name` is missing"),
        ("- {name: , serviceAccount: true}".into(), "3: `kubernetes.accounts[0].name` is missing"),
        (
            "- {name: '', serviceAccount: true}".into(),
            "3: `kubernetes.accounts[0].name` is \"\", but must be text",
        ),
        (
            "- {name: '  ', serviceAccount: true}".into(),
            "3: `kubernetes.accounts[0].name` is \"  \", but must be",
        ),
        (format!("- {{name: {long}, serviceAccount: true}}"), "3: `kubernetes.accounts[0].name` is \"xxx"),
        (
            "- {name: \"a\\nb\", serviceAccount: true}".into(),
            "3: `kubernetes.accounts[0].name` is \"a\\nb\", but",
        ),
        (
            "- {name: [a], serviceAccount: true}".into(),
            "3: `kubernetes.accounts[0].name` is a list of 1, but",
        ),
        ("- {name: {a: b}, serviceAccount: true}".into(), "3: `kubernetes.accounts[0].name` is a group"),
        (
            "- {name: '${NAME}', serviceAccount: true}".into(),
            "3: `kubernetes.accounts[0].name` is \"${NAME}\"",
        ),
        (
            "- just-a-name".into(),
            "3: `kubernetes.accounts[0]` is \"just-a-name\", but must be a group of settings",
        ),
        ("- [name, a]".into(), "3: `kubernetes.accounts[0]` is a list of 2, but must be a group of settings"),
        ("- {name: a}".into(), "3: `kubernetes.accounts[0].kubeconfigFile` is missing; give the path"),
        (
            "- {name: a, serviceAccount: false}".into(),
            "3: `kubernetes.accounts[0].kubeconfigFile` is missing",
        ),
        ("- {name: a, kubeconfigFile: ''}".into(), "3: `kubernetes.accounts[0].kubeconfigFile` is missing"),
        (
            "- name: a\n      kubeconfigFile: /k\n      serviceAccount: true".into(),
            "5: `kubernetes.accounts[0].serviceAccount` is true although kubeconfigFile is set; keep one of the two",
        ),
        (
            "- {name: a, serviceAccount: maybe}".into(),
            "3: `kubernetes.accounts[0].serviceAccount` is \"maybe\", but must be true or false",
        ),
        ("- {name: a, kubeconfigFile: ../k}".into(), "3: `kubernetes.accounts[0].kubeconfigFile` holds `..`"),
        (
            "- {name: a, kubeconfigFile: /k/../../etc/x}".into(),
            "3: `kubernetes.accounts[0].kubeconfigFile` holds `..`",
        ),
        (
            "- {name: a, kubeconfigFile: [/k]}".into(),
            "3: `kubernetes.accounts[0].kubeconfigFile` is a list of 1",
        ),
        (
            format!("- {{{good}}}\n    - {{name: b, serviceAccount: true}}\n    - {{{good}}}"),
            "5: `kubernetes.accounts[2].name` is \"a\", which is already the name of the account at armory-agent.yml:3",
        ),
        (
            format!("- {{{good}, namespace: x}}"),
            "3: unknown setting `kubernetes.accounts[0].namespace`; did you mean `kubernetes.accounts[].namespaces`?",
        ),
        (format!("- {{{good}, cluster: c}}"), "3: unknown setting `kubernetes.accounts[0].cluster`"),
        (
            format!("- {{{good}, service-account: true}}"),
            "3: `kubernetes.accounts[0].service-account` was already set in line 3",
        ),
        (
            format!("- {{{good}, kinds: {{a: b}}}}"),
            "3: `kubernetes.accounts[0].kinds` is a group of settings",
        ),
        (
            format!("- {{{good}, kinds: [[a]]}}"),
            "3: `kubernetes.accounts[0].kinds` is a list with a list of 1 in line 3",
        ),
        (
            format!("- {{{good}, kinds: [a], omitKinds: [b]}}"),
            "3: `kubernetes.accounts[0].omitKinds` is set although kinds is; keep one of the two",
        ),
        (
            format!("- {{{good}, namespaces: [a], omitNamespaces: [b]}}"),
            "3: `kubernetes.accounts[0].omitNamespaces` is set although namespaces is",
        ),
        (
            format!("- {{{good}, onlyNamespacedResources: true}}"),
            "3: `kubernetes.accounts[0].onlyNamespacedResources` is true, which needs namespaces",
        ),
        (
            format!("- {{{good}, maxResumableResourceAgeMs: 5m}}"),
            "3: `kubernetes.accounts[0].maxResumableResourceAgeMs` is \"5m\", but must be a whole number",
        ),
        (
            format!("- {{{good}, maxResumableResourceAgeMs: -1}}"),
            "3: `kubernetes.accounts[0].maxResumableResourceAgeMs` is \"-1\"",
        ),
        (
            format!("- {{{good}, permissions: admins}}"),
            "3: `kubernetes.accounts[0].permissions` is \"admins\", but must be lists of roles under READ and WRITE",
        ),
        (
            format!("- {{{good}, permissions: [READ]}}"),
            "3: `kubernetes.accounts[0].permissions` is a list with \"READ\" in line 3",
        ),
        (
            format!("- {{{good}, permissions: {{EXECUTE: [a]}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the key \"EXECUTE\" in line 3",
        ),
        (
            format!("- {{{good}, permissions: {{READ: a}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with \"a\" under READ in line 3",
        ),
        (
            format!("- {{{good}, permissions: {{READ: ['']}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the role \"\" under READ",
        ),
        (
            format!("- {{{good}, permissions: {{READ: [~]}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the role nothing under READ",
        ),
        (
            format!("- {{{good}, permissions: {{READ: [[a]]}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the role a list of 1",
        ),
        (
            format!("- {{{good}, permissions: {{READ: [{long}]}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the role \"xxx",
        ),
        (
            format!("- {{{good}, permissions: {{READ: ['${{ROLE}}']}}}}"),
            "3: `kubernetes.accounts[0].permissions` is something with the role \"${ROLE}\" under READ in line 3, but must be lists of roles under READ and WRITE; `${…}` is not filled in",
        ),
        (
            format!("- {{{good}, customResourceDefinitions: [A.b]}}"),
            "3: `kubernetes.accounts[0].customResourceDefinitions` is a list with \"A.b\" in line 3",
        ),
        (
            format!("- {{{good}, customResourceDefinitions: [{{scope: Cluster}}]}}"),
            "3: `kubernetes.accounts[0].customResourceDefinitions` is a list with an entry without a kind",
        ),
        (
            format!("- {{{good}, customResourceDefinitions: [{{kind: A.b, scope: All}}]}}"),
            "3: `kubernetes.accounts[0].customResourceDefinitions` is a list with the scope \"All\"",
        ),
        (
            format!("- {{{good}, customResourceDefinitions: [{kinds}]}}"),
            "3: `kubernetes.accounts[0].customResourceDefinitions` is a list of 1001",
        ),
        (
            format!("- &a {{{good}}}\n    - *a"),
            "3: `kubernetes.accounts[1].name` is \"a\", which is already the name of the account at armory-agent.yml:3",
        ),
    ];
    for (entry, want) in cases {
        let message = error(agent(&format!("kubernetes:\n  accounts:\n    {entry}\n")));
        let want = format!("armory-agent.yml:{want}");
        assert!(message.starts_with(&want), "{entry}\ngives {message}\nand not {want}");
        assert!(message.len() < 500, "{message}");
    }
}

#[test]
fn other_shapes_of_the_list_are_refused() {
    for (yaml, want) in [
        ("kubernetes.accounts: a", "1: `kubernetes.accounts` is \"a\", but must be a group of settings"),
        ("kubernetes.accounts[2].name: a", "1: `kubernetes.accounts[0].name` is missing"),
        (
            "kubernetes.accounts[4000000000].name: a",
            "1: `kubernetes.accounts` lists 4000000001 accounts, and an agent takes 1000 at most; add another agent",
        ),
    ] {
        let message = error(agent(yaml));
        assert!(message.starts_with(&format!("armory-agent.yml:{want}")), "{yaml} gives {message}");
    }
}

#[test]
fn a_thousand_accounts_are_taken_and_one_more_is_not() {
    let list = |n: usize| -> String {
        (0..n).map(|i| format!("    - {{name: a{i}, kubeconfigFile: /k/{i}}}\n")).collect()
    };
    assert_eq!(accounts(&format!("kubernetes:\n  accounts:\n{}", list(1000))).len(), 1000);
    let message = error(agent(&format!("kubernetes:\n  accounts:\n{}", list(1001))));
    assert!(message.contains("`kubernetes.accounts` lists 1001 accounts"), "{message}");
}

#[test]
fn all_bad_accounts_are_named_at_once() {
    let message = error(agent("kubernetes.accounts:\n- {name: a}\n- {serviceAccount: true}\n- {name: b}\n"));
    assert_eq!(message.lines().count(), 3, "{message}");
}

#[test]
fn accounts_are_printed_so_that_they_load_again() {
    let yaml = "
kubernetes:
  accounts:
    - name: '007'
      kubeconfigFile: /k/a
      permissions: [{READ: [007, 'a \"b\"']}, {WRITE: [x]}]
      customResourceDefinitions: [{kind: A.b, scope: cluster}]
      kinds: [pod]
      metrics: true
    - {name: b, serviceAccount: true}
";
    let first = agent(yaml).expect("valid");
    let printed = first.print();
    assert!(printed.contains("    - name: \"007\"  # "), "{printed}");
    assert!(
        printed.contains("      permissions: {READ: [\"007\", \"a \\\"b\\\"\"], WRITE: [\"x\"]}"),
        "{printed}"
    );
    assert_eq!(agent(&printed).expect(&printed).settings, first.settings);
    assert!(agent("").expect("valid").print().contains("  accounts: []  # default\n"));
}

#[test]
fn keys_that_clouddriver_knows_are_named_in_one_warning_and_other_unknown_ones_are_errors() {
    let yaml = "
kubernetes:
  accounts:
    - name: a
      serviceAccount: true
      providerVersion: V2
      cacheThreads: 4
      customResources: [{kubernetesKind: A.b}]
      rawResourcesEndpointConfig: {kindExpressions: [a]}
      requiredGroupMembership: []
    - {name: b, serviceAccount: true, provider-version: V2}
";
    let loaded = agent(yaml).expect("they are ignored");
    assert_eq!(loaded.settings.accounts.len(), 2);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    let warning = &loaded.warnings[0];
    for key in ["providerVersion", "cacheThreads", "customResources", "rawResourcesEndpointConfig"] {
        assert!(warning.contains(&format!("`kubernetes.accounts[].{key}`")), "{warning}");
    }
    assert!(warning.contains("Clouddriver knows"), "{warning}");
    let of =
        |key: &str| error(agent(&format!("kubernetes.accounts: [{{name: a, serviceAccount: true, {key}}}]")));
    let unknown = of("cacheThreds: 1");
    assert!(unknown.contains("unknown setting") && unknown.contains("cacheThreads"), "{unknown}");
    let groups = of("requiredGroupMembership: [ops]");
    assert!(groups.contains("cannot be honoured") && groups.contains("permissions"), "{groups}");
}

#[test]
fn settings_that_are_only_passed_on_say_that_they_have_no_effect() {
    let of = |settings: &str| {
        let yaml = format!("kubernetes.accounts: [{{name: a, serviceAccount: true, {settings}}}]");
        agent(&yaml).expect(settings)
    };
    let loaded = of("metrics: true, noProxy: true");
    let spec = &loaded.settings.accounts[0].spec;
    assert!(spec.metrics && spec.no_proxy);
    let said = loaded.warnings.join("\n");
    assert!(
        said.contains("`kubernetes.accounts[].metrics` has no effect: metrics of pods are not sent"),
        "{said}"
    );
    assert!(
        said.contains("`kubernetes.accounts[].noProxy` has no effect: the agent dials directly"),
        "{said}"
    );
    let read = of("kinds: [pod], onlySpinnakerManaged: true, maxResumableResourceAgeMs: 5");
    assert_eq!(read.warnings, [""; 0]);
    assert!(agent("clouddriver.noProxy: true").expect("valid").warnings[0].contains("has no effect"));
}
