//! Everything that the documentation names exists: link targets, anchors, `make` targets, and paths of the
//! repository in code. The tables of settings match the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kubesvc::settings::OperatorSettings;
use kubesvc_agent::settings::AgentSettings;
use kubesvc_core::registration::RegistrationReason;
use kubesvc_runtime::config::{RefusalRule, SettingUse, Settings, Spec};

/// Folders whose paths must exist when code in a page names them.
const FOLDERS: &[&str] = &[
    "benches/",
    "charts/",
    "config/",
    "controlplane/",
    "crates/",
    "crds/",
    "docs/",
    "examples/",
    "migrations/",
    "proto/",
    "src/",
    "tests/",
];

#[test]
fn every_link_has_a_target() {
    let mut links = 0;
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in links_of(&text) {
            links += 1;
            if let Err(why) = follow(&page, link) {
                broken.push(format!("{}: {link}: {why}", shown(&page)));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(links > 10, "only {links} links were found: is this test reading the right files?");
}

#[test]
fn every_make_target_exists() {
    let makefile = read(&root().join("Makefile"));
    let there: BTreeSet<&str> = targets_of(&makefile).collect();
    let mut named = 0;
    let mut missing = Vec::new();
    for page in pages() {
        let text = read(&page);
        for target in code_of(&text).into_iter().filter_map(make_target) {
            named += 1;
            if !there.contains(target) {
                missing.push(format!("{}: make {target}", shown(&page)));
            }
        }
    }
    assert!(missing.is_empty(), "the Makefile has no such target:\n{}", missing.join("\n"));
    assert!(named > 2, "only {named} targets were found: is this test reading the right files?");
}

#[test]
fn every_path_in_code_exists() {
    let mut missing = Vec::new();
    for page in pages() {
        let text = read(&page);
        for path in code_of(&text).into_iter().flat_map(paths_in) {
            if !root().join(path).exists() {
                missing.push(format!("{}: {path}", shown(&page)));
            }
        }
    }
    assert!(missing.is_empty(), "no such file or folder:\n{}", missing.join("\n"));
}

/// The settings as rows of two Markdown tables.
struct Reference {
    /// Settings that are read: key, type, default, environment variable, meaning.
    now: Vec<String>,
    /// The others: key, type, default, why it is not read, meaning.
    not: Vec<String>,
}

impl Reference {
    fn of(spec: &Spec) -> Self {
        let (mut now, mut not) = (Vec::new(), Vec::new());
        let mut above = String::new();
        for row in spec.rows() {
            let (rows, mut read) = match row.used {
                _ if let Some(why) = row.idle => (&mut now, format!("without effect: {why}")),
                SettingUse::Read(_) => {
                    let name = row.environment_name().map(|name| format!("`{name}`"));
                    (&mut now, name.unwrap_or_default())
                }
                SettingUse::Inert(why) => (&mut not, format!("no effect: {why}")),
                SettingUse::Refused(RefusalRule { harmless: None, .. }) => {
                    (&mut not, "refused: not built".to_owned())
                }
                SettingUse::Refused(RefusalRule { harmless: Some(word), .. }) => {
                    (&mut not, format!("refused, but `{word}`: not built"))
                }
            };
            if ["no effect: ", "refused"].iter().any(|begin| read.starts_with(begin)) {
                if read == above {
                    "as above".clone_into(&mut read);
                } else {
                    above.clone_from(&read);
                }
            }
            let default = match row.used {
                SettingUse::Read(default) if !default.is_empty() => format!("`{default}`"),
                _ => String::new(),
            };
            let secret = if row.kind.is_secret() { " (never shown)" } else { "" };
            let (key, kind, about) = (&row.key, allowed(&row.kind.to_string()), row.about);
            rows.push(format!("| `{key}` | {kind}{secret} | {default} | {read} | {about} |"));
        }
        Self { now, not }
    }

    /// A table with this heading over its fourth column.
    fn table(rows: &[String], column: &str) -> String {
        let head = format!("| setting | allowed | default | {column} | meaning |\n|---|---|---|---|---|");
        [&[head][..], rows].concat().join("\n")
    }
}

/// What is allowed, shorter than in messages of errors: the page says how to read it.
fn allowed(kind: &str) -> String {
    let kind = kind
        .replace("true or false", "boolean")
        .replace("text on one line of at most ", "text, ≤ ")
        .replace(" (at most 63 lower-case letters, digits and hyphens)", "")
        .replace(
            "http://HOST:PORT or https://HOST:PORT, with a path or without, and without a user and a password, query and \
             fragment",
            "a URL without user, password, query, fragment",
        );
    let Some(number) = kind.strip_prefix("a whole number ") else { return kind.replace(" characters", "") };
    let (what, range) = number.split_once("from ").unwrap_or(("", number));
    let unit = match what.trim() {
        "of seconds" => " s",
        "of milliseconds" => " ms",
        "of nanoseconds" => " ns",
        "" => "",
        noted => return format!("{} {noted}", range.replace(" to ", "…")),
    };
    format!("{}{unit}", range.replace(" to ", "…"))
}

/// The key of a row.
fn key_of(row: &str) -> &str {
    row.split('`').nth(1).expect("a row begins with its key")
}

#[test]
fn the_list_of_settings_names_each_once() {
    for spec in [OperatorSettings::spec(), AgentSettings::spec()] {
        let Reference { now, not } = Reference::of(spec);
        let mut keys: Vec<_> = now.iter().chain(&not).map(|row| key_of(row)).collect();
        let rows = keys.len();
        assert!(rows > 60, "{rows}");
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), rows);
    }
    let Reference { now, not } = Reference::of(OperatorSettings::spec());
    let (now, not) = (now.join("\n"), not.join("\n"));
    assert!(now.contains("| `server.port` | 0…65535 (a port; 0 lets the system choose) | `7002` | `SERVER_PORT` | port of the REST server |"), "{now}");
    assert!(not.contains("anything (never shown) |  | as above | password of that store |"), "{not}");
}

#[test]
fn every_reason_of_a_registration_has_a_row() {
    let (remedies, states) =
        (read(&root().join("docs/beside-clouddriver.md")), read(&root().join("docs/states.md")));
    for reason in RegistrationReason::ALL {
        let name = reason.name();
        assert!(
            remedies.contains(&format!("\n| `{name}` | ")),
            "docs/beside-clouddriver.md has no row for {name}"
        );
        assert!(states.contains(&format!("`{name}`")), "docs/states.md does not name {name}");
    }
}

/// With `UPDATE_DOCS` set, the tables are written instead (`make docs`).
#[test]
fn the_tables_of_settings_match_the_code() {
    let path = root().join("docs/settings.md");
    let page = read(&path);
    let mut wanted = page.clone();
    for (spec, name) in [(OperatorSettings::spec(), "operator"), (AgentSettings::spec(), "agent")] {
        let Reference { now, not } = Reference::of(spec);
        for (which, rows, column) in
            [("read now", now, "environment"), ("not read", not, "why it is not read")]
        {
            let table = Reference::table(&rows, column);
            wanted = fill(&wanted, &format!("<!-- {name}: {which} -->"), &table);
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).expect("docs/settings.md can be written");
    }
    assert!(
        page == wanted || read(&path) == wanted,
        "docs/settings.md is not what the settings of the programs say: run `make docs`"
    );
}

#[test]
fn commented_settings_files_have_every_setting() {
    for (spec, file) in
        [(OperatorSettings::spec(), "kubesvc.yml"), (AgentSettings::spec(), "armory-agent.yml")]
    {
        let text = read(&root().join("config/settings").join(file));
        let present = setting_keys(&text);
        for row in Reference::of(spec).now {
            let key = key_of(&row);
            // Names that the user chooses are on no list.
            let key = key.split_once(".*").map_or(key, |(map, _)| map);
            assert!(present.contains(key), "config/settings/{file} does not tell of {key}");
        }
    }
}

#[test]
fn pages_of_installation_name_the_version_of_the_programs() {
    let mut versions = 0;
    let mut old = Vec::new();
    for page in ["README.md", "docs/install.md", "docs/plugin.md", "Dockerfile"] {
        for version in versions_of(&read(&root().join(page))) {
            versions += 1;
            if version != env!("CARGO_PKG_VERSION") {
                old.push(format!("{page}: {version}"));
            }
        }
    }
    assert!(old.is_empty(), "another version than that of Cargo.toml:\n{}", old.join("\n"));
    assert!(versions > 10, "only {versions} versions were found: is this test reading the right files?");
}

#[test]
fn doc_checks_find_errors() {
    let text = "# A page\n\n[a](docs/x.md) and [b](https://example.org)\n`make demo`, and make no mistake\n\n\
                ```sh\n$ make test  # says [c](d)\nkubectl apply -k config/none\n```\n\n## The `two` words, and more\n";
    assert_eq!(links_of(text).collect::<Vec<_>>(), ["docs/x.md"]);
    let code = code_of(text);
    assert_eq!(code.iter().filter_map(|code| make_target(code)).collect::<Vec<_>>(), ["demo", "test"]);
    assert_eq!(code.into_iter().flat_map(paths_in).collect::<Vec<_>>(), ["config/none"]);
    assert!(anchors_of(text).any(|anchor| anchor == "the-two-words-and-more"));
    assert_eq!(targets_of("a-b: c ## d\nX := 1\n\tcommand: x\n").collect::<Vec<_>>(), ["a-b"]);
    let settings =
        "a:\n  # Prose: and more.\n  b: 1\n  c: []\n  # - d: x\n  #   # e:\n  #   #   f: 2\n# g:\n#   b: 3\n";
    let keys = ["a", "a.Prose", "a.b", "a.c", "a.c[].d", "a.c[].e", "a.c[].e.f", "g", "g.b"];
    assert!(setting_keys(settings).iter().eq(&keys.map(str::to_owned)), "{:?}", setting_keys(settings));
    let commands = "kubesvc:0.1.0 .` --version 0.2.0, v1.36.3, 127.0.0.1, 3.18.\n\
                    /v0.3.0/kubesvc.yaml a-0.4.0-b.tar.gz 0.5.0.";
    assert_eq!(versions_of(commands), ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0"]);
}

/// The keys of a settings file in full, such as `kubernetes.accounts[].name`, also those in comments: `# key: value`, with
/// one space after each `#`. Prose that begins with a word and a colon counts as a key too.
fn setting_keys(text: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    // Column and name of the keys around a line; `[]` for the item of a list, between its dash and its first key.
    let mut path: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_start_matches(' ');
        let mut column = line.len() - rest.len();
        while let Some(comment) = rest.strip_prefix('#') {
            rest = comment.trim_start_matches(' ');
            column += (comment.len() - rest.len()).saturating_sub(1);
        }
        if let Some(item) = rest.strip_prefix("- ") {
            path.retain(|(outer, _)| *outer <= column);
            path.push((column + 1, "[]"));
            (rest, column) = (item, column + 2);
        }
        let Some((key, _)) = rest.split_once(':') else { continue };
        let is_key = key.starts_with(|first: char| first.is_ascii_alphabetic())
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_key {
            continue;
        }
        path.retain(|(outer, _)| *outer < column);
        path.push((column, key));
        let names: Vec<_> = path.iter().map(|(_, name)| *name).collect();
        keys.insert(names.join(".").replace(".[]", "[]"));
    }
    keys
}

/// Inserts a table between a mark and the next `<!-- end -->`.
fn fill(page: &str, mark: &str, table: &str) -> String {
    let (before, rest) = page.split_once(mark).expect("the mark of each table is in the page");
    let (_, after) = rest.split_once("<!-- end -->").expect("each table has an end");
    format!("{before}{mark}\n{table}\n<!-- end -->{after}")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn shown(page: &Path) -> String {
    page.strip_prefix(root()).unwrap_or(page).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| unreachable!("{}: {e}", path.display()))
}

/// The pages at the top of the repository, in `docs/`, and in each folder of `src/` and `crates/`.
fn pages() -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| {
        let entries = fs::read_dir(&folder).expect("the folder of the pages");
        entries.map(|entry| entry.expect("an entry of that folder").path())
    };
    let mut pages: Vec<_> = in_folder(root())
        .chain(in_folder(root().join("docs")))
        .chain(below(&root().join("src")))
        .chain(below(&root().join("crates")))
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    pages.sort();
    pages
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let paths = entries.map(|entry| entry.expect("an entry of that folder").path());
    paths.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

/// The lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    lines(text).filter(|(fenced, _)| !fenced).map(|(_, line)| line)
}

/// All lines, each with whether it is part of a fenced block.
fn lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.lines().scan(false, |fenced, line| {
        let fence = line.trim_start().starts_with("```");
        let inside = *fenced || fence;
        *fenced ^= fence;
        Some((inside, line))
    })
}

/// The targets of links into the repository.
fn links_of(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

fn follow(page: &Path, link: &str) -> Result<(), String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_path_buf(),
        path => page.parent().expect("a page is in a folder").join(path),
    };
    if !target.exists() {
        return Err("no such file or folder".to_owned());
    }
    if anchor.is_empty() || anchors_of(&read(&target)).any(|there| there == anchor) {
        return Ok(());
    }
    Err(format!("no heading #{anchor}"))
}

/// The anchors of headings as code hosts generate them: lower-case letters, digits and dashes.
fn anchors_of(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// The lines of fenced blocks, and the text between backticks.
fn code_of(text: &str) -> Vec<&str> {
    let mut code = Vec::new();
    for (fenced, line) in lines(text) {
        if fenced {
            code.push(line.trim());
        } else {
            code.extend(line.split('`').skip(1).step_by(2));
        }
    }
    code
}

/// The target, if the command is a call of `make`.
fn make_target(code: &str) -> Option<&str> {
    let command = code.trim_start_matches("$ ").strip_prefix("make ")?;
    let target = command.split_whitespace().next()?;
    target.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-').then_some(target)
}

fn targets_of(makefile: &str) -> impl Iterator<Item = &str> {
    makefile.lines().filter_map(|line| {
        let (target, rest) = line.split_once(':')?;
        let legal =
            !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        (legal && !rest.starts_with('=')).then_some(target)
    })
}

/// The versions of three numbers, without those that begin with a v, such as Kubernetes', unless a link does: `/v0.1.0/`.
fn versions_of(text: &str) -> Vec<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.replace("/v", "/");
    text.split(|next: char| !next.is_ascii_alphanumeric() && next != '.')
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.split('.').count() == 3 && word.split('.').all(is_number))
        .map(str::to_owned)
        .collect()
}

/// The words that are paths of this repository.
fn paths_in(code: &str) -> Vec<&str> {
    code.split_whitespace()
        .map(|word| word.trim_start_matches("./").trim_end_matches([',', ';', ':', '.']))
        .filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)))
        .collect()
}
