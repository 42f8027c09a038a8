//! The sources of the agent's token for the hub.

use std::time::Duration;

use super::{Files, agent, error};
use crate::settings::{TokenCommandSettings, TokenFormat, TokenSettings};
use kubesvc_runtime::config::UnknownKeys;
use secrecy::ExposeSecret as _;

fn source(yaml: &str) -> Option<TokenSettings> {
    agent(yaml).expect(yaml).settings.hub.token
}

#[test]
fn each_source_is_read_and_none_is_set_by_empty_values() {
    assert_eq!(source(""), None);
    let empty =
        "clouddriver.auth: {token: '', tokenFile: '', tokenCommand: {command: '', args: [], format: ''}}";
    assert_eq!(source(empty), None);
    for text in ["t0ken", "' t0ken '", "|\n  t0ken\n"] {
        let Some(TokenSettings::Fixed(token)) = source(&format!("clouddriver.auth.token: {text}")) else {
            unreachable!("{text}")
        };
        assert_eq!(token.secret().expose_secret(), "t0ken");
    }
    let file = source("clouddriver.auth.tokenFile: /var/run/secrets/token");
    assert_eq!(file, Some(TokenSettings::File("/var/run/secrets/token".into())));
    let whole = "clouddriver.auth.tokenCommand: {command: aws, args: [eks, 'a,b'], format: RAW, refreshIntervalSeconds: 60}";
    let expected = TokenCommandSettings {
        command: "aws".to_owned(),
        args: vec!["eks".to_owned(), "a,b".to_owned()],
        format: TokenFormat::Raw,
        refresh: Duration::from_secs(60),
    };
    assert_eq!(source(whole), Some(TokenSettings::Command(expected.clone())));
    let bare = TokenCommandSettings {
        args: Vec::new(),
        format: TokenFormat::Json,
        refresh: Duration::ZERO,
        ..expected
    };
    for format in ["", ", format: ''", ", format: json"] {
        let yaml = format!("clouddriver.auth.tokenCommand: {{command: aws{format}}}");
        assert_eq!(source(&yaml), Some(TokenSettings::Command(bare.clone())), "{yaml}");
    }
}

#[test]
fn two_sources_or_a_half_one_are_errors_and_show_no_token() {
    let pairs = [
        ("token: hunter2, tokenFile: /x", "tokenFile", "token"),
        ("token: hunter2, tokenCommand.command: x", "tokenCommand.command", "token"),
        ("tokenFile: /x, tokenCommand.command: x", "tokenCommand.command", "tokenFile"),
    ];
    for (keys, second, first) in pairs {
        let message = error(agent(&format!("clouddriver.auth: {{{keys}}}")));
        let begin = format!(
            "armory-agent.yml:1: `clouddriver.auth.{second}` is set, and so is clouddriver.auth.{first};"
        );
        assert!(message.starts_with(&begin) && !message.contains("hunter2"), "{message}");
    }
    for key in ["args: [x]", "format: raw", "refreshIntervalSeconds: 5"] {
        let message = error(agent(&format!("clouddriver.auth.tokenCommand.{key}")));
        assert!(
            message.contains("is set, but clouddriver.auth.tokenCommand.command is not; set both"),
            "{message}"
        );
    }
    for text in ["'hunter 2'", "'  '", "\"hunter\\t2\"", "hünter2", &"hunter2".repeat(2500)] {
        let message = error(agent(&format!("clouddriver.auth.token: {text}")));
        let begin = "armory-agent.yml:1: `clouddriver.auth.token` is a value not shown here";
        assert!(message.starts_with(begin), "{message}");
        assert!(message.contains("must be 1 to 16384 visible ASCII characters"), "{message}");
    }
}

#[test]
fn no_token_and_no_argument_is_shown() {
    let loaded = agent("clouddriver.auth.token: https://hunter2:x@y").expect("it is a token");
    let printed = loaded.print();
    assert!(printed.contains("token: \"***\"") && !printed.contains("hunter2"), "{printed}");
    assert!(!format!("{:?}", loaded.settings).contains("hunter2"));
    let loaded = agent("clouddriver.auth.tokenCommand: {command: x, args: [hunter2]}").expect("a command");
    assert!(!format!("{:?}", loaded.settings).contains("hunter2"));
}

#[test]
fn a_token_without_tls_is_sent_with_a_warning() {
    let plain = |yaml: &str| agent(yaml).expect(yaml).warnings;
    for yaml in [
        "clouddriver: {auth.token: hunter2}",
        "clouddriver: {insecure: true, auth.token: hunter2}",
        "clouddriver: {insecure: true, auth.tokenFile: /x}",
        "clouddriver: {insecure: true, auth.tokenCommand.command: x}",
    ] {
        let warnings = plain(yaml);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].starts_with("armory-agent.yml:1: the token of `clouddriver.auth.token"),
            "{warnings:?}"
        );
        assert!(warnings[0].contains("without TLS") && !warnings[0].contains("hunter2"), "{warnings:?}");
    }
    assert!(plain("clouddriver: {insecure: false, auth.token: hunter2}").is_empty());
    assert!(plain("clouddriver: {tls.cacertFile: /ca, auth.token: hunter2}").is_empty());
    let settings = agent("clouddriver: {auth.token: hunter2}").expect("plaintext").settings;
    assert!(settings.hub.insecure && settings.hub.token.is_some(), "a token alone asks for no TLS");
}

#[test]
fn relative_paths_count_from_the_folder_of_the_settings_and_bare_names_from_path() {
    for (keys, expected) in
        [("tokenFile: run/token", "run/token"), ("tokenCommand.command: ./bin/x", "./bin/x")]
    {
        let files = Files::new(&[("armory-agent.yml", &format!("clouddriver.auth.{keys}"))]);
        let token = files.agent(UnknownKeys::Error).expect(keys).settings.hub.token;
        let path = match token.expect("a source") {
            TokenSettings::File(path) => path,
            TokenSettings::Command(command) => command.command.into(),
            TokenSettings::Fixed(_) => unreachable!("{keys}"),
        };
        assert_eq!(path, files.path(expected));
    }
    let Some(TokenSettings::Command(command)) = source("clouddriver.auth.tokenCommand.command: aws") else {
        unreachable!("a command")
    };
    assert_eq!(command.command, "aws");
}
