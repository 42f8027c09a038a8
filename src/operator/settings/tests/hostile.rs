//! Malicious files, and random text.

use proptest::prelude::*;

use super::{Files, error, operator};
use crate::operator::settings::load;
use kubesvc_runtime::config::UnknownKeys;

#[test]
fn malformed_files_are_refused_with_file_and_line() {
    let deep_flow = format!("kubesvc: {}", "[".repeat(10_000));
    let deep_block: String = (0..500).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    let laughs: String = (1..40)
        .map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}, *a{0}, *a{0}]\n", i - 1))
        .fold("a0: &a0 [x, x, x, x]\n".to_owned(), |all, line| all + &line);
    let long = format!("a: &a {}\n", "x".repeat(1 << 20))
        + &(0..40).map(|i| format!("b{i}: *a\n")).collect::<String>();
    let long_key = format!("? {}\n: b\n", "a.".repeat(1 << 20));
    let parts = format!("logging.fields.{}: b\n", "a.".repeat(64) + "a");
    let parts_in_groups: String = (0..40)
        .map(|i| format!("{}a.a.a.a:\n", " ".repeat(i)))
        .fold("logging.fields:\n".to_owned(), |all, line| all + " " + &line.replace(' ', "  "));
    let tower: String = (1..40)
        .map(|i| format!("a{i}: &a{i} [[[[[*a{}]]]]]\n", i - 1))
        .fold("a0: &a0 [x]\n".to_owned(), |all, line| all + &line);
    let cases = [
        ("kubesvc: {", "c.yml:"),
        ("kubesvc: [1, 2", "c.yml:"),
        ("kubesvc:\n\tcache: 1", "c.yml:2"),
        ("kubesvc: \"open", "c.yml:1"),
        ("kubesvc: 'open", "c.yml:1"),
        ("a: b: c", "c.yml:1"),
        ("a: 1\n b: 2", "c.yml:2"),
        (
            "- a\n- b\n",
            "c.yml:1: not valid YAML settings: the file must be a group of settings, but is a list of 2",
        ),
        (
            "just words",
            "c.yml:1: not valid YAML settings: the file must be a group of settings, but is \"just words\"",
        ),
        ("a: *nobody", "c.yml:1"),
        (
            "kubesvc: &a {b: *a}",
            "c.yml:1: not valid YAML settings: an alias inside the value that it stands for",
        ),
        ("a: 1\n---\nb: 2\n", "c.yml:2: not valid YAML settings: a second document begins here"),
        ("a: 1\na: 2\n", "c.yml:2: not valid YAML settings: `a` was already given in line 1"),
        (
            "? [a]\n: b\n",
            "c.yml:1: not valid YAML settings: a list or mapping stands where a key is expected",
        ),
        ("{}: b\n", "c.yml:1: not valid YAML settings: a list or mapping stands where a key is expected"),
        ("~: b\n", "c.yml:1: not valid YAML settings: a key is empty"),
        ("'': b\n", "c.yml:1: not valid YAML settings: a key is empty"),
        ("a: &x [1]\n? *x\n: b\n", "c.yml:2: not valid YAML settings: a key is not text"),
        ("a:\n  <<: text\n", "c.yml:2: not valid YAML settings: `<<` takes a mapping or a list of mappings"),
        ("%YAML 9.9.9\n---\na: b", "c.yml:1"),
        ("a: \"\\q\"", "c.yml:1"),
        ("a: \"\\uD800\"", "c.yml:1"),
        ("@a: b", "c.yml:1"),
        ("a: `b", "c.yml:1"),
        ("a: %b", "c.yml:1"),
        ("a: b\u{0}c", "c.yml:1"),
        ("kubesvc: !<", "c.yml:1"),
        (&deep_flow, "c.yml:1"),
        (&deep_block, "c.yml:"),
        (&laughs, "c.yml:"),
        (&long, "c.yml:"),
        (&tower, "c.yml:"),
        (&long_key, "c.yml:1: not valid YAML settings: a key is longer than 1024 bytes"),
        (&parts, "c.yml:1: not valid YAML settings: a key has more than 64 parts"),
        (&parts_in_groups, "c.yml:"),
    ];
    for (yaml, want) in cases {
        let message = error(operator(yaml));
        let head: String = yaml.chars().take(40).collect();
        assert!(message.starts_with(want), "{head:?} gives {message:?}");
        assert!(message.contains(": not valid YAML settings: "), "{head:?} gives {message:?}");
        assert!(message.len() < 400, "{head:?} gives {message:?}");
    }
}

#[test]
fn what_is_no_file_of_text_is_refused() {
    let files = Files::new(&[]);
    std::fs::create_dir(files.path("folder")).expect("a folder");
    std::fs::write(files.path("latin1.yml"), b"a: 1\nb: \xe9\n").expect("a file");
    std::fs::write(files.path("utf16.yml"), b"\xff\xfea\0:\0 \x001\0").expect("a file");
    std::fs::write(files.path("big.yml"), vec![b' '; (16 << 20) + 1]).expect("a file");
    let cases = [
        ("folder", "folder: cannot be read: it is a folder, not a file"),
        ("missing.yml", "missing.yml: cannot be read: No such file or directory (os error 2)"),
        ("latin1.yml", "latin1.yml:2: not valid YAML settings: the text is not UTF-8"),
        ("utf16.yml", "utf16.yml:1: not valid YAML settings: the text is not UTF-8"),
        ("big.yml", "big.yml: cannot be read: it is larger than 16 MiB"),
    ];
    for (name, want) in cases {
        assert_eq!(error(files.operator(&[name], UnknownKeys::Warn)), want);
    }
    std::fs::create_dir(files.path("armory-agent.yml")).expect("a folder");
    assert_eq!(
        error(files.agent(UnknownKeys::Warn)),
        "armory-agent.yml: cannot be read: it is a folder, not a file"
    );
    let inside = files.path("latin1.yml");
    let message = kubesvc_agent::settings::load(&inside, &|_| None, UnknownKeys::Error)
        .map(|_| ())
        .expect_err("a file as folder");
    assert!(message.to_string().contains("latin1.yml/armory-agent.yml: cannot be read: Not a directory"));
}

#[test]
fn a_large_honest_file_loads_in_good_time() {
    let accounts: String =
        (0..5000).map(|i| format!("    a{i}.eu:\n      onlySpinnakerManaged: true\n")).collect();
    let begun = std::time::Instant::now();
    let loaded = operator(&format!(
        "kubesvc:\n  runtime:\n    accounts:\n{}",
        accounts.replace("    a", "      a").replace("      only", "        only")
    ))
    .expect("valid");
    assert_eq!(loaded.warnings, [""; 0]);
    assert!(loaded.settings.cache.defaults.only_spinnaker_managed("a4999.eu"));
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn unknown_keys_beyond_measure_are_bounded() {
    let many: String = (0..20_000).map(|i| format!("kubesvc.{}{i}: 1\n", "x".repeat(50))).collect();
    let message = error(operator(&many));
    assert_eq!(message.lines().count(), 21);
    let files = Files::new(&[("c.yml", &many)]);
    let warnings = files.operator(&["c.yml"], UnknownKeys::Warn).expect("only warnings").warnings;
    assert_eq!(warnings.len(), 201);
    assert_eq!(warnings[200], "c.yml: further unknown settings are not named");
}

/// Fragments of YAML, some of them kubesvc's keys.
fn yamlish() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "kubesvc",
        "server",
        "logging",
        "armory",
        "cache",
        "port",
        "fields",
        "accounts",
        "runtime",
        "kubernetes",
        ".",
        ":",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "&a ",
        "*a",
        "<<: ",
        "'",
        "\"",
        "|\n",
        ">\n",
        "? ",
        "!!str ",
        "!x ",
        "%",
        "@",
        "#",
        "---\n",
        "...\n",
        "~",
        "null",
        "0",
        "1",
        "-1",
        "4MB",
        "true",
        "\t",
        "\\",
        "é",
        "\u{feff}",
        "\u{0}",
        "\u{85}",
        "\u{2028}",
        "😀",
        "[0]",
        "..",
        "${a}",
        "x-",
    ]);
    prop_oneof![
        prop::collection::vec(pieces, 0..60).prop_map(|p| p.concat()),
        prop::collection::vec(any::<char>(), 0..200).prop_map(|c| c.into_iter().collect()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_loader_panic(text in yamlish(), warn in any::<bool>()) {
        let unknown = if warn { UnknownKeys::Warn } else { UnknownKeys::Error };
        let files = Files::new(&[("c.yml", &text), ("armory-agent.yml", &text)]);
        let results = [
            ("c.yml", files.operator(&["c.yml"], unknown).map(drop)),
            ("armory-agent.yml", files.agent(unknown).map(drop)),
        ];
        for (file, result) in results {
            let begins = |line: &str| line.starts_with(&format!("{file}:")) || line.starts_with("and ");
            prop_assert!(result.as_ref().err().is_none_or(|error| error.lines().all(begins)), "{result:?}");
        }
    }

    #[test]
    fn no_variable_makes_the_loader_panic(text in any::<String>()) {
        let env = |_: &str| Some(text.clone());
        let _ = load(&[], &env, UnknownKeys::Error).map(|l| l.print());
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_always_loads(name in "[a-zA-Z.#: -]{1,12}", value in "\\PC{1,40}") {
        let entry = serde_json::json!({ "logging": { "fields": { name: value } } }).to_string();
        if let Ok(first) = operator(&entry) {
            let printed = first.print();
            let second = operator(&printed).map(|l| l.settings);
            prop_assert_eq!(Ok(first.settings), second, "{}", printed);
        }
    }
}
