//! The settings of credentials sources.

use std::path::PathBuf;

use super::{error, operator};
use crate::credentials_sources::{ObjectKind, SourcePlace};
use crate::operator::settings::CredentialsSourcesSettings;
use kubesvc_clouddriver::definition::{FileRoot, RootTarget};

const ALL: &str = "kubesvc:
  clouddriver:
    sources:
    - {name: sql, type: sql, url: 'mysql://reader@db:3306/clouddriver?ssl-mode=REQUIRED', password-file: /p, ssl-ca: /ca.pem}
    - {name: yaml, type: file, paths: [/c/clouddriver.yml, /c/clouddriver-local.yml], profile: prod}
    - {name: halyard, type: file, secret: {namespace: spinnaker, name: spin-clouddriver-files, keys: [clouddriver.yml]}}
    - {name: map, type: FILE, configMap: {name: clouddriver}}
    - {name: config, type: configserver, uri: 'https://config:8888/base', profile: [prod, eu], username: u, passwordFile: /p, caFile: /ca}
    - {name: live, type: api, uri: 'http://spin-clouddriver:7002', username: kubesvc}
    vars: {services.clouddriver.host: hunter2, ZONE: eu, EMPTY: ''}
    fileRoots:
    - {from: /home/spinnaker, to: /mounted}
    - {from: /home/other, secret: spinnaker/kubeconfigs}
    - {from: /agent, agent: /opt/kubeconfigs}
";

fn settings(yaml: &str) -> CredentialsSourcesSettings {
    operator(yaml).expect("valid").settings.credentials_sources
}

#[test]
fn sources_keep_their_order_and_their_defaults() {
    assert_eq!(settings(""), CredentialsSourcesSettings::default());
    let all = settings(ALL);
    let names: Vec<_> = all.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(names, ["sql", "yaml", "halyard", "map", "config", "live"]);
    let places: Vec<_> = all.sources.into_iter().map(|source| source.place).collect();
    let text = |text: &str| text.to_owned();
    let path = |path: &str| Some(PathBuf::from(path));
    assert_eq!(
        places[0],
        SourcePlace::Sql {
            url: text("mysql://reader@db:3306/clouddriver?ssl-mode=REQUIRED"),
            password_file: path("/p"),
            authority: path("/ca.pem"),
        }
    );
    assert!(
        matches!(&places[1], SourcePlace::Files { paths, profiles } if paths.len() == 2 && *profiles == ["prod"])
    );
    assert!(
        matches!(&places[2], SourcePlace::Object { kind: ObjectKind::Secret, namespace: Some(of), .. } if of == "spinnaker")
    );
    assert!(
        matches!(&places[3], SourcePlace::Object { kind: ObjectKind::ConfigMap, namespace: None, keys, .. } if keys.is_empty())
    );
    assert_eq!(
        places[4],
        SourcePlace::ConfigServer {
            uri: text("https://config:8888/base"),
            application: text("clouddriver"),
            profile: text("prod,eu"),
            label: None,
            username: Some(text("u")),
            password_file: path("/p"),
            authority: path("/ca"),
        }
    );
    assert!(matches!(&places[5], SourcePlace::Api { username: Some(user), .. } if user == "kubesvc"));
    assert_eq!(all.vars.get("services.clouddriver.host").map(String::as_str), Some("hunter2"));
    assert_eq!(
        (all.vars.get("ZONE").map(String::as_str), all.vars.get("EMPTY").map(String::as_str)),
        (Some("eu"), Some(""))
    );
    let secret = RootTarget::Secret { namespace: text("spinnaker"), name: text("kubeconfigs") };
    let to = |from: &str, to| FileRoot { from: text(from), to };
    assert_eq!(
        all.file_roots,
        [
            to("/home/spinnaker", RootTarget::Folder(text("/mounted"))),
            to("/home/other", secret),
            to("/agent", RootTarget::Agent(text("/opt/kubeconfigs"))),
        ]
    );
}

#[test]
fn printed_settings_show_no_value_of_a_variable() {
    let loaded = operator(ALL).expect("valid");
    assert!(loaded.print().contains("spin-clouddriver-files"), "{}", loaded.print());
    assert!(!loaded.print().contains("hunter2"), "{}", loaded.print());
}

#[test]
fn refused_url_of_a_server_is_not_quoted() {
    for key in ["baseUrl", "push.gateway"] {
        let said = error(operator(&format!("kubesvc.clouddriver.{key}: 'http://u:hunter2@clouddriver'\n")));
        assert!(said.contains(key) && said.contains("without a user and a password"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn problem_names_file_line_key_and_what_is_allowed() {
    for (entry, expected) in [
        ("{type: sql, url: 'mysql://u@h/d'}", "c.yml:2: `kubesvc.clouddriver.sources[0].name` is missing"),
        ("{name: a b, type: api, uri: 'http://c'}", "`kubesvc.clouddriver.sources[0].name` may have letters"),
        (
            "{name: a}",
            "`kubesvc.clouddriver.sources[0].type` is missing: it is one of sql, file, configServer, api",
        ),
        (
            "{name: a, type: yaml}",
            "sources[0].type` is \"yaml\", but must be one of sql, file, configServer, api",
        ),
        ("{name: a, type: sql}", "sources[0].url` is missing: a source of type sql needs it"),
        (
            "{name: a, type: sql, url: 'mysql://u:hunter2@h/d'}",
            "sources[0].url` is a value not shown here, but must be mysql://USER@HOST:PORT/DATABASE",
        ),
        (
            "{name: a, type: sql, url: 'mysql://u@h/d', paths: [/x]}",
            "sources[0].paths` is no setting of a source of type sql",
        ),
        (
            "{name: a, type: file}",
            "sources[0].paths` is not alone, or missing: one of paths, secret and configMap",
        ),
        ("{name: a, type: file, paths: [x.yml]}", "but must be a list of absolute paths"),
        (
            "{name: a, type: file, paths: [/x], secret: {name: s}}",
            "one of paths, secret and configMap is needed",
        ),
        (
            "{name: a, type: file, secret: {keys: [k]}}",
            "sources[0].secret.name` must be the name of a Secret",
        ),
        (
            "{name: a, type: file, configMap: {name: A_B}}",
            "sources[0].configMap.name` must be the name of a ConfigMap",
        ),
        ("{name: a, type: configServer}", "sources[0].uri` is missing"),
        ("{name: a, type: configServer, uri: 'http://u:hunter2@c'}", "and without a user and a password"),
        (
            "{name: a, type: configServer, uri: 'http://c', passwordFile: /p}",
            "passwordFile` needs username too",
        ),
        ("{name: a, type: api, uri: 'ftp://c'}", "must be http://HOST:PORT or https://HOST:PORT"),
        (
            "{name: a, type: api, uri: 'http://c', url: 'mysql://u@h/d'}",
            "url` is no setting of a source of type api",
        ),
        ("{name: a, type: api, uri: 'http://c', nope: 1}", "nope"),
    ] {
        let said = error(operator(&format!("kubesvc.clouddriver.sources:\n- {entry}\n")));
        assert!(said.contains("c.yml:2") && said.contains(expected), "{entry}\n{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let twice = "kubesvc.clouddriver.sources:\n- {name: a, type: api, uri: 'http://c'}\n- {name: a, type: api, uri: 'http://d'}\n";
    let said = error(operator(twice));
    assert!(
        said.contains("c.yml:3: `kubesvc.clouddriver.sources[1].name` is the name of an earlier source"),
        "{said}"
    );
    let many: String = (0..17).map(|n| format!("- {{name: s{n}, type: api, uri: 'http://c'}}\n")).collect();
    let said = error(operator(&format!("kubesvc.clouddriver.sources:\n{many}")));
    assert!(said.contains("has 17 entries, and 16 are the most"), "{said}");
    for (root, expected) in [
        ("{to: /x}", "fileRoots[0].from` is missing"),
        ("{from: /a}", "fileRoots[0].from` needs one of to, secret and agent"),
        ("{from: /a, to: /b, agent: /c}", "fileRoots[0].from` needs one of to, secret and agent"),
        ("{from: /a, to: b}", "fileRoots[0].to` must be an absolute path"),
        ("{from: /a, agent: /b/../c}", "fileRoots[0].agent` must be an absolute path without .."),
        ("{from: /a, secret: s}", "the namespace and name of a Secret, as NAMESPACE/NAME"),
    ] {
        let said = error(operator(&format!("kubesvc.clouddriver.fileRoots:\n- {root}\n")));
        assert!(said.contains("c.yml:2") && said.contains(expected), "{root}\n{said}");
    }
}
