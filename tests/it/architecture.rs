//! What the packages cannot hold: the order of the modules within the operator, and which modules are pure. The check
//! reads lines of code: comments and tests are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::world::in_repository;

/// The layers of the operator, from top to bottom. A module imports only from lower layers.
const LAYERS: &[&[&str]] = &[
    &["operator"],
    &["controller", "gateway", "hub", "migration", "registration", "replica_port", "rest"],
    &["account_caches", "operations", "source_accounts"],
    &["request_routing"],
    &[
        "access",
        "agent_tokens",
        "certificates",
        "clouddriver",
        "connected_agents",
        "credentials_sources",
        "peers",
        "leases",
        "informers",
        "secrets",
    ],
];

/// Modules that decide without I/O and read no clock.
const PURE: &[&str] = &[
    "crates/agent/src/account_table",
    "crates/clouddriver/src",
    "crates/core/src",
    "src/agent_tokens/check",
    "src/agent_tokens/key_set",
    "src/gateway/delete_options",
    "src/gateway/paths",
    "src/gateway/rewriting",
    "src/hub/agent_admission/hello",
    "src/hub/agent_admission/queue",
    "src/hub/requests/choice",
    "src/hub/requests/outcome",
    "src/hub/sessions/duties",
    "src/hub/sessions/ledger",
    "src/hub/static_accounts/judge",
    "src/hub/static_accounts/listing",
    "src/hub/table_writers/assignments/row_diff",
    "src/hub/table_writers/caching_commands",
    "src/hub/zone_probes/probe",
    "src/leases/election_rules",
    "src/leases/isolation",
    "src/leases/liveness",
];
const IO: &[&str] = &[
    "hyper",
    "kube::Api",
    "kube::Client",
    "sqlx",
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::process",
    "std::thread",
    "tokio",
    "tonic",
];
const CLOCKS: &[&str] = &["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now"];

/// Folders and files that hold only tests.
const TESTS: &[&str] = &["fixtures", "properties", "tests"];

/// A line of code.
struct Line {
    file: String,
    number: usize,
    text: String,
}

/// The lines of code of a module: `PATH.rs`, and the files below `PATH`.
fn code_of(module: &str) -> Vec<Line> {
    let folder = PathBuf::from(in_repository(module));
    let mut files = vec![folder.with_extension("rs")];
    files.retain(|file| file.is_file());
    below(&folder, &mut files);
    files.sort();
    assert!(!files.is_empty(), "there is no module {module}");
    files.iter().flat_map(|file| lines_of(file)).collect()
}

fn below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("the checkout is whole").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if TESTS.contains(&name) {
            continue;
        }
        if path.is_dir() {
            below(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn lines_of(file: &Path) -> Vec<Line> {
    let text = fs::read_to_string(file).expect("a source is text");
    let root = in_repository("");
    let name = file.strip_prefix(&root).unwrap_or(file).display().to_string();
    code(&text).into_iter().map(|(number, text)| Line { file: name.clone(), number, text }).collect()
}

/// The lines before the tests that are no comments. A `use` of several lines is one.
fn code(text: &str) -> Vec<(usize, String)> {
    let before_tests = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut in_use = false;
    for (at, line) in before_tests.lines().map(str::trim).enumerate() {
        if line.starts_with("//") {
            continue;
        }
        match lines.last_mut() {
            Some((_, before)) if in_use => before.push_str(line),
            _ => lines.push((at + 1, line.to_owned())),
        }
        in_use |= line.starts_with("use ") || line.starts_with("pub use ");
        in_use &= !line.ends_with(';');
    }
    lines
}

/// Whether a path occurs in a line as a whole, in a `use` with braces too: `use kube::{Api, Client}` has `kube::Api`.
fn mentions(line: &str, path: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let found = line.match_indices(path).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + path.len()..]);
        !before.ends_with(is_name)
            && !after.starts_with(is_name)
            && (path.contains(':') || after.starts_with("::"))
    });
    let in_braces = path.rsplit_once("::").and_then(|(folder, name)| {
        let (before, names) = line.split_once(&format!("{folder}::{{"))?;
        Some(!before.ends_with(is_name) && names.split(|c| !is_name(c)).any(|other| other == name))
    });
    found || in_braces.unwrap_or(false)
}

/// Fails the test if one of these paths occurs in the code of the modules.
fn assert_free_of(modules: &[&str], paths: &[&str]) {
    let mut wrong = Vec::new();
    for line in modules.iter().flat_map(|module| code_of(module)) {
        let found = paths.iter().filter(|path| mentions(&line.text, path));
        wrong.extend(found.map(|path| format!("{}:{}: {path}", line.file, line.number)));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn operator_imports_point_down_and_never_between_siblings() {
    for (depth, layer) in LAYERS.iter().enumerate() {
        let shares_a_layer = depth == LAYERS.len() - 1;
        for module in *layer {
            let above = LAYERS[..depth].iter().flat_map(|layer| layer.iter());
            let beside = layer.iter().filter(|other| *other != module && !shares_a_layer);
            let forbidden: Vec<_> = above.chain(beside).map(|other| format!("crate::{other}")).collect();
            let forbidden: Vec<_> = forbidden.iter().map(String::as_str).collect();
            assert_free_of(&[&format!("src/{module}")], &forbidden);
        }
    }
}

#[test]
fn every_module_of_the_operator_has_a_layer() {
    let root = fs::read_to_string(in_repository("src/lib.rs")).expect("a library has a root");
    let there: BTreeSet<_> =
        root.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    let known: BTreeSet<_> = LAYERS.iter().flat_map(|layer| layer.iter().copied()).collect();
    assert_eq!(there, known, "src/lib.rs, and LAYERS in tests/it/architecture.rs");
    for module in there {
        assert!(
            root.contains(&format!("`{module}`")),
            "{module} is not in the table at the top of src/lib.rs"
        );
    }
}

#[test]
fn deciding_modules_do_no_io_and_read_no_clock() {
    assert_free_of(PURE, IO);
    assert_free_of(PURE, CLOCKS);
    // It may wait, but only for a wake.
    assert_free_of(&["crates/runtime/src/work_queue"], CLOCKS);
}

/// A part of the hub holds the parts below it, never the hub with all of them.
#[test]
fn no_part_of_the_hub_imports_the_hub() {
    for part in
        ["agent_admission", "agent_status", "sessions", "static_accounts", "table_writers", "zone_probes"]
    {
        assert_free_of(&[&format!("src/hub/{part}")], &["crate::hub::Hub"]);
    }
}

#[test]
fn programs_only_call_the_library() {
    let mut programs = Vec::new();
    below(Path::new(&in_repository("src/bin")), &mut programs);
    assert_eq!(programs.len(), 3);
    for program in programs {
        let length = lines_of(&program).len();
        assert!(length <= 30, "{}: {length} lines: move them into its composition root", program.display());
    }
}

#[test]
fn import_check_finds_violations() {
    assert!(mentions("use crate::hub::Hub;", "crate::hub"));
    assert!(mentions("    crate::hub::f()", "crate::hub"));
    assert!(mentions("use crate::hub::{Hub, HubError};", "crate::hub::Hub"));
    assert!(mentions("use tonic::Status;", "tonic"));
    assert!(mentions("let now = jiff::Timestamp::now();", "Timestamp::now"));
    assert!(!mentions("use crate::hub::{HubError, Pings};", "crate::hub::Hub"));
    assert!(!mentions("use crate::hubs::f;", "crate::hub"));
    assert!(!mentions("let tonic = 1;", "tonic"));
    let text = "use kube::{\n    // a\n    Api,\n};\n    /// b\n    c\n#[cfg(test)]\nmod tests {\n    d\n}\n";
    assert_eq!(code(text), [(1, "use kube::{Api,};".to_owned()), (6, "c".to_owned())]);
    assert!(mentions(&code(text)[0].1, "kube::Api"));
}
