//! Generated files and statements about the programs match what the programs say themselves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use kubesvc_core::KubesvcMigration;
use kubesvc_testkit::{folder::Folder, must};

const OPERATOR: &str = env!("CARGO_BIN_EXE_kubesvc-operator");
const AGENT: &str = env!("CARGO_BIN_EXE_kubesvc-agent");
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");

fn run(program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output =
        Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program was built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn in_folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn in_repository(path: &str) -> String {
    let path = in_folder(path);
    must(std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display())))
}

/// The sorted documents of a YAML text, without comments.
fn documents(yaml: &str) -> Vec<String> {
    let code: String =
        yaml.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let mut documents: Vec<_> = code
        .split("---\n")
        .map(str::trim)
        .filter(|document| !document.is_empty())
        .map(str::to_owned)
        .collect();
    documents.sort();
    documents
}

#[test]
fn crds_match_the_types() {
    let (code, printed, errors) = run(OPERATOR, &["crds"]);
    assert_eq!(code, Some(0), "{errors}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let mut kept = Vec::new();
    for file in std::fs::read_dir(&folder).expect("crds/ is in the repository") {
        let path = file.expect("crds/ can be read").path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            kept.extend(documents(&must(std::fs::read_to_string(&path).map_err(|e| e.to_string()))));
        }
    }
    kept.sort();
    assert!(kept == documents(&printed), "crds/ is old: run `make crds`");
}

#[test]
fn charts_have_the_generated_crds() {
    for name in
        ["kubesvcaccounts.yaml", "kubesvcagents.yaml", "kubesvcidentities.yaml", "kubesvcmigrations.yaml"]
    {
        let copy = in_repository(&format!("charts/kubesvc/files/crds/{name}"));
        assert!(
            copy == in_repository(&format!("crds/{name}")),
            "{name} of the chart is old: run `make crds`"
        );
    }
}

/// With `UPDATE_DOCS` set, the schemas are written instead (`make docs`).
#[test]
fn the_charts_schemas_of_settings_are_what_the_tables_say() {
    for (chart, program) in [("kubesvc", "operator"), ("kubesvc-agent", "agent")] {
        let (code, printed, errors) = run(OPERATOR, &["settings-schema", program]);
        assert_eq!(code, Some(0), "{errors}");
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("a schema is JSON");
        let path = format!("charts/{chart}/values.schema.json");
        let kept = in_repository(&path);
        let mut schema = read(&kept);
        let mut settings = read(&printed);
        if let Some(root) = settings.as_object_mut() {
            root.remove("$schema");
        }
        // An account of the chart has these keys and no others.
        let account = &settings["properties"]["kubernetes"]["properties"]["accounts"]["items"]["properties"];
        if let Some(keys) = account.as_object() {
            let keys = keys.keys().map(|key| (key.clone(), Value::Bool(true)));
            schema["properties"]["accounts"]["items"]["properties"] = keys.collect();
        }
        let mut keys = BTreeSet::new();
        known_keys(&settings, "", &mut keys);
        let keys = keys.into_iter().collect::<Vec<_>>().join("\n");
        schema["$defs"]["settings"] = settings;
        let of_keys = format!("charts/{chart}/files/settings-keys.txt");
        for (path, wanted) in [(path, format!("{schema:#}\n")), (of_keys, format!("{keys}\n"))] {
            if std::env::var_os("UPDATE_DOCS").is_some() {
                must(std::fs::write(in_folder(&path), &wanted).map_err(|e| format!("{path}: {e}")));
            } else {
                let kept = in_repository(&path);
                assert!(
                    kept == wanted,
                    "{path} is not what the settings of the programs say: run `make docs`"
                );
            }
        }
    }
}

/// Adds the keys below `path`, without case, hyphens and underscores, as the programs match them; `.*` stands for any key
/// of a group.
fn known_keys(schema: &Value, path: &str, keys: &mut BTreeSet<String>) {
    let below = |name: &str| format!("{path}.{name}").trim_start_matches('.').to_owned();
    let group = schema["properties"].as_object();
    for (name, inner) in group.into_iter().flatten() {
        known_keys(inner, &below(&name.to_lowercase().replace(['-', '_'], "")), keys);
    }
    let type_ = &schema["type"];
    let may_be_a_group =
        type_ == "object" || type_.as_array().is_some_and(|all| all.iter().any(|one| one == "object"));
    let takes_a_group = may_be_a_group || schema["anyOf"].is_array();
    if schema["additionalProperties"].is_object() || (group.is_none() && takes_a_group) {
        keys.insert(below("*"));
    }
    if group.is_none() && !schema["additionalProperties"].is_object() {
        keys.insert(path.to_owned());
    }
}

#[test]
fn openapi_document_matches_the_routes() {
    let (code, printed, errors) = run(OPERATOR, &["openapi"]);
    assert_eq!(code, Some(0), "{errors}");
    let read = |text: &str| serde_json::from_str::<Value>(text).expect("OpenAPI is JSON");
    assert!(
        read(&printed) == read(&in_repository("docs/openapi.json")),
        "docs/openapi.json is old: run `make openapi`"
    );
}

#[test]
fn help_of_every_program_has_examples() {
    for (name, program) in
        [("kubesvc-operator", OPERATOR), ("kubesvc-agent", AGENT), ("kubectl-kubesvc", PLUGIN)]
    {
        let (code, help, errors) = run(program, &["--help"]);
        assert_eq!(code, Some(0), "{name} --help: {errors}");
        assert!(help.contains("Usage:"), "{name} --help says no usage:\n{help}");
        assert!(help.contains("Examples:"), "{name} --help has no examples:\n{help}");
        let (code, version, _) = run(program, &["--version"]);
        assert_eq!(code, Some(0), "{name} --version");
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{name} --version: {version}");
        let (code, _, errors) = run(program, &["--no-such-flag"]);
        assert_eq!(code, Some(2), "{name} --no-such-flag: {errors}");
    }
}

#[test]
fn printed_settings_are_redacted() {
    let folder = must(Folder::new("drift"));
    let file = must(folder.write(
        "kubesvc.yml",
        "kubesvc:\n  database:\n    url: mysql://kubesvc:CANARY-password@db.example.com/kubesvc\n  grpc:\n    server:\n      port: 1234\n",
    ));
    let (code, printed, errors) = run(OPERATOR, &["--config", &file.display().to_string(), "--print-config"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.contains("1234") && printed.contains("db.example.com"), "{printed}");
    assert!(!printed.contains("CANARY"), "{printed}");
    assert!(!errors.contains("CANARY"), "{errors}");

    must(folder.write(
        "armory-agent.yml",
        "clouddriver:\n  grpc: hub.example.com:9091\n  insecure: true\n  tls:\n    clientKeyFilePassword: CANARY-key\n  auth:\n    token: CANARY-token\n",
    ));
    let (code, printed, errors) =
        run(AGENT, &["--config-dir", &folder.path().display().to_string(), "--print-config"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.contains("hub.example.com:9091"), "{printed}");
    assert!(!printed.contains("CANARY"), "{printed}");
    assert!(!errors.contains("CANARY"), "{errors}");
}

#[test]
fn settings_and_migration_of_the_page_are_accepted() {
    let page = in_repository("docs/migrate-from-clouddriver.md");
    let blocks: Vec<&str> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [values, migration] = blocks[..] else { unreachable!("{blocks:?}") };
    let values: Value = serde_saphyr::from_str(values).expect("values of the chart");
    let folder = must(Folder::new("drift"));
    let file = must(folder.write("kubesvc.yml", &values["settings"].to_string()));
    let (code, printed, errors) = run(OPERATOR, &["--config", &file.display().to_string(), "--print-config"]);
    assert_eq!(code, Some(0), "{errors}");
    for name in ["sql", "files", "config"] {
        assert!(printed.contains(&format!("name: \"{name}\"")), "{name}: {printed}");
    }
    let migration: KubesvcMigration = serde_saphyr::from_str(migration).expect("a KubesvcMigration");
    assert_eq!(migration.spec.patterns, ["team-a-.*"]);
    assert_eq!(migration.spec.zone_rules[0].zone_id, "east");
}

#[test]
fn settings_of_the_page_of_security_are_accepted() {
    let page = in_repository("docs/security.md");
    let values = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let values: Value = serde_saphyr::from_str(values.expect("a block")).expect("values of the chart");
    let folder = must(Folder::new("drift"));
    let file = must(folder.write("kubesvc.yml", &values["settings"].to_string()));
    let (code, printed, errors) = run(OPERATOR, &["--config", &file.display().to_string(), "--print-config"]);
    assert_eq!(code, Some(0), "{errors}");
    let mounted = values["extraVolumeMounts"][0]["mountPath"].as_str().expect("a folder");
    assert!(printed.contains(&format!("certificateChain: \"{mounted}/tls.crt\"")), "{printed}");
}

#[test]
fn closed_output_pipe_is_no_error() {
    let folder = must(Folder::new("drift"));
    let dir = folder.path().display().to_string();
    for (program, arguments) in [
        (OPERATOR, vec!["--print-config"]),
        (OPERATOR, vec!["openapi"]),
        (OPERATOR, vec!["crds"]),
        (AGENT, vec!["--config-dir", &dir, "--print-config"]),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = Command::new(program).args(&arguments).stdout(writer).output().expect("it runs");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), errors.as_ref()), (Some(0), ""), "{program} {arguments:?}");
    }
}

#[test]
fn unsupported_security_setting_is_named_with_exit_code_2() {
    let folder = must(Folder::new("drift"));
    for (text, named) in [
        ("kubesvc.grpc.server.security.enabled: true", "kubesvc.grpc.server.security.enabled"),
        ("kubesvc.grpc.server.security.clientAuth: REQUIRE", "kubesvc.grpc.server.security.clientAuth"),
        ("kubesvc.grpc.server.security.privateKeyPassword: CANARY", "privateKeyPassword"),
        ("kubesvc.grpc.auth.x509.filters: ['CN=a']", "kubesvc.grpc.auth.x509.filters"),
        ("server.ssl.enabled: true", "server.ssl.enabled"),
    ] {
        let file = must(folder.write("kubesvc.yml", text)).display().to_string();
        let (code, _, errors) = run(OPERATOR, &["--config", &file, "--config-unknown=warn"]);
        assert_eq!(code, Some(2), "{text}: {errors}");
        assert!(errors.contains(named) && errors.contains("kubesvc.yml:1"), "{text}: {errors}");
        assert!(!errors.contains("CANARY"), "{errors}");
    }
    for (text, named) in [
        ("clouddriver.auth: {token: CANARY, tokenFile: /absent}", "clouddriver.auth.tokenFile"),
        ("clouddriver.auth.token: CANARY CANARY", "clouddriver.auth.token"),
        ("clouddriver.auth.tokenCommand.args: [CANARY]", "clouddriver.auth.tokenCommand.args"),
        ("clouddriver.tls.clientKeyFile: /tls.key", "clouddriver.tls.clientKeyFile"),
        ("server.ssl.enabled: true", "server.ssl.enabled"),
        ("secrets.vault.token: CANARY", "secrets.vault.token"),
    ] {
        must(folder.write("armory-agent.yml", text));
        let (code, _, errors) = run(AGENT, &["--config-dir", &folder.path().display().to_string()]);
        assert_eq!(code, Some(2), "{text}: {errors}");
        assert!(errors.contains(named) && errors.contains("armory-agent.yml:1"), "{text}: {errors}");
        assert!(!errors.contains("CANARY"), "{errors}");
    }
}

#[test]
fn file_of_tls_or_of_a_token_that_cannot_be_used_is_named_with_exit_code_2() {
    let folder = must(Folder::new("drift"));
    let empty = must(folder.write("empty.pem", "")).display().to_string();
    for (text, parts) in [
        ("clouddriver.tls.cacertFile: /absent.pem", ["`clouddriver.tls.cacertFile`", "/absent.pem"]),
        (&format!("clouddriver.tls.clientCertFile: {empty}"), ["`clouddriver.tls.clientCertFile`", &empty]),
        (
            &format!("server.ssl: {{enabled: true, certFile: {empty}, keyFile: /absent.key}}"),
            ["`server.ssl.keyFile`", "/absent.key"],
        ),
        ("clouddriver.auth.tokenFile: /absent.token", ["`clouddriver.auth.tokenFile`", "/absent.token"]),
        (&format!("clouddriver.auth.tokenFile: {empty}"), ["`clouddriver.auth.tokenFile`", &empty]),
        (
            "clouddriver.auth.tokenCommand.command: absent-program",
            ["`clouddriver.auth.tokenCommand.command`", "absent-program"],
        ),
    ] {
        must(folder.write("armory-agent.yml", &format!("zoneId: east\n{text}")));
        let (code, _, errors) = run(AGENT, &["--config-dir", &folder.path().display().to_string()]);
        assert_eq!(code, Some(2), "{text}: {errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{text}: {errors}");
    }
}

#[test]
fn invalid_setting_is_named_with_its_position_and_exit_code_2() {
    let folder = must(Folder::new("drift"));
    for (text, named) in [
        ("server:\n  port: seventy\n", "server.port"),
        ("kubesvc:\n  dynamicAccount:\n    enabled: true\n", "dynamicAccounts"),
        ("kubesvc:\n  dynamicAccounts:\n    maxRetries: -1\n", "maxRetries"),
        ("server: [\n", "kubesvc.yml"),
    ] {
        let file = must(folder.write("kubesvc.yml", text)).display().to_string();
        let (code, _, errors) = run(OPERATOR, &["--config", &file]);
        assert_eq!(code, Some(2), "{text}{errors}");
        assert!(errors.contains(named) && errors.contains("kubesvc.yml"), "{text}{errors}");
    }
    let (code, _, errors) = run(OPERATOR, &["--config", "/nowhere/kubesvc.yml"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("/nowhere/kubesvc.yml"), "{errors}");
}
