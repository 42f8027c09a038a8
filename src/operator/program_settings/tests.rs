//! Settings of the vendor's plugin and agents, judged by those of kubesvc's programs.

use std::io::Write as _;

use kubesvc_clouddriver::sources::{NamedText, read_settings};
use kubesvc_plugin::SettingResult::{self, Refused, Taken, Unknown, WithoutEffect};
use kubesvc_plugin::{ImportedSettings, judged};

use super::*;

const ROOTS: [&str; 2] = ["kubesvc", "armory.kubesvc"];

fn imported(files: &[(&str, &str)]) -> ImportedSettings {
    let file = |(name, text): &(&str, &str)| NamedText { name: (*name).to_owned(), text: (*text).to_owned() };
    let files: Vec<_> = files.iter().map(file).collect();
    let found = read_settings(&files, &[], &ROOTS).expect("YAML");
    let mut imported = judged(OperatorSettings::spec(), &found);
    imported.refuse_unfit(checked).expect("what is left fits");
    imported
}

fn results(imported: &ImportedSettings) -> Vec<(&str, SettingResult)> {
    imported.lines.iter().map(|line| (line.key.as_str(), line.result)).collect()
}

/// Reads a file as the operator does.
fn checked(text: &str) -> Result<(), ConfigError> {
    let mut file = tempfile::NamedTempFile::with_suffix(".yml").expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    check_operator(file.path())
}

fn accepted(imported: &ImportedSettings) -> Result<(), String> {
    checked(&imported.file).map_err(|error| error.to_string())
}

#[test]
fn every_documented_setting_of_the_plugin_is_judged() {
    for (key, value, expected) in [
        ("cache.accountCleanupFrequencySeconds", "600", Taken),
        ("cache.cacheDefaults", "[Pod, Service]", Taken),
        ("cache.cacheKinds", "[Pod]", Taken),
        ("cache.cacheStreamingPoolCoreSize", "10", WithoutEffect),
        ("cache.cacheStreamingPoolMaxSize", "100", WithoutEffect),
        ("cache.cleanDataWithUnusedAccounts", "true", Taken),
        ("cache.eventsCleanupFrequencySeconds", "7200", Taken),
        ("cache.namespaceExpiryMinutes", "5", WithoutEffect),
        ("cache.onDemandQuickWaitMs", "10000", Taken),
        ("cache.operationWaitMs", "30000", Taken),
        ("cluster", "kubernetes", Taken),
        ("cluster", "redis", Refused),
        ("cluster-kubernetes.kubeconfigFile", "/kubeconfig", Taken),
        ("cluster-kubernetes.verifySsl", "false", Taken),
        ("cluster-kubernetes.namespace", "spinnaker", Taken),
        ("cluster-kubernetes.httpPortName", "http", Taken),
        ("cluster-kubernetes.clouddriverServiceNamePrefix", "spin-clouddriver", Taken),
        ("disableV2Provider", "true", WithoutEffect),
        ("dynamicAccounts.enabled", "true", Taken),
        ("grpc.auth.x509.enabled", "true", Refused),
        ("grpc.auth.x509.enabled", "false", Taken),
        ("grpc.auth.x509.filters", "[CN=agent]", Refused),
        ("grpc.server.address", "'*'", Taken),
        ("grpc.server.port", "9091", Taken),
        ("grpc.server.healthServiceEnabled", "true", Taken),
        ("grpc.server.maxInboundMessageSize", "4MB", Taken),
        ("grpc.server.security.enabled", "true", Refused),
        ("grpc.server.security.certificateChain", "file:/chain.pem", Refused),
        ("grpc.server.security.privateKey", "file:/key.pem", Refused),
        ("grpc.server.security.privateKeyPassword", "s3cret", Refused),
        ("grpc.server.security.clientAuth", "NONE", Taken),
        ("grpc.server.security.clientAuth", "REQUIRE", Refused),
        ("grpc.server.security.ciphers", "[A]", Refused),
        ("grpc.server.security.trustCertCollection", "file:/ca.pem", Refused),
        ("grpc.server.security.protocols", "[TLSv1.2]", Refused),
        ("grpc.server.security.keepAliveHeartbeatSeconds", "20", Taken),
        ("grpc.server.security.KeepAliveTimeOutSeconds", "20", Taken),
        ("heartbeat.initialDelay", "0", Taken),
        ("heartbeat.period", "60", Taken),
        ("heartbeat.periodUnit", "SECONDS", Taken),
        ("heartbeat.enabled", "false", Taken),
        ("jobs.operation-history.purge.weeks", "1", Taken),
        ("jobs.operation-history.purge.cron", "0 0 0 * * 0", Taken),
        ("loadBalancer", "MN", WithoutEffect),
        ("runtime.defaults.onlySpinnakerManaged", "true", Taken),
        ("runtime.defaults.customResources", "[{kubernetesKind: A.b, deployPriority: '100'}]", Taken),
        ("runtime.accounts.prod.onlySpinnakerManaged", "true", Taken),
        ("runtime.accounts.prod.customResources", "[{kubernetesKind: A.b, versioned: true}]", Taken),
        ("v2-cache-eviction.disable", "true", WithoutEffect),
        ("v2-cache-eviction.batch-size", "5", WithoutEffect),
        ("v2-cache-eviction.millis", "200", WithoutEffect),
        ("ops.processTime.metric.result.maxLength", "255", Taken),
        ("operations.database.scan.batchSize", "5", WithoutEffect),
        ("cache.cacheKindz", "[Pod]", Unknown),
        ("nothing.known", "s3cret", Unknown),
    ] {
        for root in ROOTS {
            let text = format!("{root}.{key}: {value}\n");
            let imported = imported(&[("clouddriver.yml", &text)]);
            let said = format!("{root}.{key}: {:?}", imported.lines);
            assert_eq!(results(&imported), [(format!("{root}.{key}").as_str(), expected)], "{said}");
            assert!(!said.contains("s3cret"), "{said}");
            assert_eq!(accepted(&imported), Ok(()), "{}", imported.file);
            assert_eq!(imported.file.is_empty(), expected != Taken, "{said}");
            let line = &imported.lines[0];
            assert_eq!(line.reason.is_empty(), expected == Taken || line.key.contains("nothing"), "{said}");
        }
    }
    // Their fate changes with the version that reads them.
    for key in ["credentials.poller.reloadFrequencyMs", "dynamicAccounts.scanBatchSize"] {
        let result = results(&imported(&[("clouddriver.yml", &format!("kubesvc.{key}: 500\n"))]))[0].1;
        assert!(matches!(result, Taken | WithoutEffect), "{key}: {result:?}");
    }
}

#[test]
fn files_count_in_springs_order_and_spellings_are_one_setting() {
    let imported = imported(&[
        ("clouddriver-local.yml", "kubesvc: {cluster-kubernetes: {useDns: true}, cache: {cache-kinds: []}}"),
        (
            "clouddriver.yml",
            "server.port: 7002\nkubesvc:\n  cluster: ${MODE:kubernetes}\n  clusterKubernetes: {useDNS: false}\n  \
             cache: {cacheKinds: [Pod, Job]}\n  runtime.accounts: {'[a.b]': {onlySpinnakerManaged: true}, A-B: \
             {onlySpinnakerManaged: false}}\n---\nspring.profiles: other\nkubesvc.cluster: local\n",
        ),
    ]);
    assert_eq!(accepted(&imported), Ok(()), "{}", imported.file);
    for line in [
        "\"kubesvc.cluster\": \"kubernetes\"  # clouddriver.yml",
        "\"kubesvc.cluster-kubernetes.useDns\": true  # clouddriver-local.yml",
        "\"kubesvc.cache.cache-kinds\": []  # clouddriver-local.yml",
        "\"kubesvc.runtime.accounts[a.b].onlySpinnakerManaged\": true  # clouddriver.yml",
        "\"kubesvc.runtime.accounts.A-B.onlySpinnakerManaged\": false  # clouddriver.yml",
    ] {
        assert!(imported.file.lines().any(|one| one == line), "{line} is not in\n{}", imported.file);
    }
    assert_eq!(imported.file.lines().count(), 5, "{}", imported.file);
    let lower: Vec<_> = imported.lines.iter().filter(|line| line.result == WithoutEffect).collect();
    assert_eq!(lower.len(), 2, "{lower:?}");
    assert_eq!(imported.incomplete, None);
}

#[test]
fn contradictions_switches_and_gaps_are_told() {
    let roots = "kubesvc: {cluster: local, cache.cacheAll: true}\narmory: {kubesvc: {cluster: kubernetes, cache: {cacheAll: true}}}\n";
    let both = imported(&[("clouddriver.yml", roots)]);
    let refused: Vec<_> = both.lines.iter().filter(|line| line.result == Refused).collect();
    assert_eq!(refused.len(), 1, "{:?}", both.lines);
    assert!(
        refused[0].key.ends_with("cluster") && refused[0].reason.contains("armory.kubesvc"),
        "{refused:?}"
    );
    assert!(both.file.contains("cacheAll\": true"), "{}", both.file);

    let off =
        "kubesvc.grpc.server.security: {enabled: false, certificateChain: file:/x, clientAuth: REQUIRE}\n";
    let off = imported(&[("clouddriver.yml", off)]);
    assert!(off.lines.iter().all(|line| line.result == Taken), "{:?}", off.lines);
    assert_eq!(accepted(&off), Ok(()), "with the switch off they are ignored: {}", off.file);
    let on =
        "kubesvc.grpc.server.security: {enabled: true, certificateChain: file:/x, privateKey: file:/k}\n";
    let on = imported(&[("clouddriver.yml", on)]);
    assert!(on.lines.iter().all(|line| line.result == Taken), "{:?}", on.lines);

    let gaps = imported(&[(
        "clouddriver.yml",
        "kubesvc: {cluster: '${MODE}', nothing: {}}\nspring.config.import: x.yml\n",
    )]);
    assert_eq!(gaps.lines[0].result, Refused, "{:?}", gaps.lines);
    assert!(gaps.lines[0].reason.contains("write the value into the file"), "{:?}", gaps.lines);
    assert!(gaps.incomplete.is_some_and(|why| why.contains("spring.config.import")));
}

#[test]
fn no_settings_of_any_shape_stop_the_import_or_the_operator() {
    use proptest::prelude::*;
    let keys = proptest::sample::select(vec![
        "kubesvc.cluster",
        "armory.kubesvc.cluster",
        "KUBESVC.cache.cacheKinds",
        "kubesvc.cache",
        "kubesvc",
        "kubesvc.runtime.accounts",
        "kubesvc.runtime.accounts[a.b].onlySpinnakerManaged",
        "kubesvc.heartbeat.period",
        "kubesvc.grpc.server.security.enabled",
        "kubesvc.v2-cache-eviction",
        "kubesvc..x",
        "kubesvc.a[0]",
        "armory",
    ]);
    let values = proptest::sample::select(vec![
        "",
        "~",
        "[]",
        "{}",
        "true",
        "kubernetes",
        "'#'",
        "[Pod, '# x']",
        "{cluster: local}",
        "[[1]]",
        "{a: {b: 1}}",
        "${X:local}",
        "${X",
        "\"a\\nb\"",
        "{1: {onlySpinnakerManaged: true}}",
        "99999999999999999999",
    ]);
    let settings = proptest::collection::btree_map(keys, values, 0..6);
    proptest!(ProptestConfig::with_cases(300), |(settings in settings)| {
        let text: String = settings.iter().map(|(key, value)| format!("\"{key}\": {value}\n")).collect();
        let files = [NamedText { name: "clouddriver.yml\n#".to_owned(), text }];
        if let Ok(found) = read_settings(&files, &[], &ROOTS) {
            let mut imported = judged(OperatorSettings::spec(), &found);
            imported.refuse_unfit(checked).expect("what is left fits");
            prop_assert_eq!(imported.lines.len(), found.settings.len());
            prop_assert_eq!(accepted(&imported), Ok(()), "{}", imported.file);
        }
    });
}

#[test]
fn agents_files_are_listed_also_if_the_agent_refuses_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "zoneId: east\nclouddriver: {auth: {token: s3cret}}\nsecrets.vault.token: s3cret\npprof: {enabled: true}\nkubernetes:\n  accounts:\n  \
                - {name: a, kubeconfigFile: /kubeconfigfiles/a}\n  - {name: b, serviceAccount: true}\n  \
                - {name: c, kubeconfigFile: 'encryptedFile:vault!e:s3cret!p:x!k:y', kinds: s3cret, nothing: s3cret}\n";
    std::fs::write(folder.path().join("armory-agent.yml"), text).expect("written");
    let read = agent(folder.path());
    assert_eq!(read.zone_id.as_deref(), Some("east"));
    let accounts = read.accounts.clone().unwrap_or_default();
    let shown: Vec<_> = accounts.iter().map(|one| (one.name.as_str(), one.credential.as_str())).collect();
    assert_eq!(shown[..2], [("a", "kubeconfig file"), ("b", "service account")], "{read:?}");
    assert!(shown[2].0 == "c" && shown[2].1.contains("engine"), "{read:?}");
    for part in ["secrets.vault.token", "nothing"] {
        assert!(read.refused.iter().any(|line| line.contains(part)), "{part}: {read:?}");
    }
    assert!(read.ignored.iter().any(|line| line.contains("pprof.enabled")), "{read:?}");
    assert!(!format!("{read:?}").contains("s3cret"), "{read:?}");
}
