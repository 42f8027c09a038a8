//! Imports point down, as the map of layers below says. The test reads the sources: every path that starts
//! with `crate`, `super` or `self`, in `use` and elsewhere. Test code is left out.

mod source;

use std::collections::{BTreeMap, BTreeSet};

use self::source::{Source, all_sources};

/// The layers, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// Composes one program.
    Root,
    /// A large part that does not know its siblings.
    Sibling,
    /// A port that siblings share, or an adapter to the outside.
    Port,
    /// A small helper without I/O of its own.
    Part,
    /// No I/O, no clock.
    Core,
}

/// The map of layers. A module that is missing here fails the tests.
const MAP: &[(&str, Layer)] = &[
    ("operator", Layer::Root),
    ("agent_program", Layer::Root),
    ("plugin", Layer::Root),
    ("controller", Layer::Sibling),
    ("hub", Layer::Sibling),
    ("agent", Layer::Sibling),
    ("rest", Layer::Sibling),
    ("ui", Layer::Sibling),
    ("fleet", Layer::Port),
    ("peers", Layer::Port),
    ("objects", Layer::Port),
    ("store", Layer::Port),
    ("leases", Layer::Port),
    ("secrets", Layer::Port),
    ("wire", Layer::Port),
    ("config", Layer::Port),
    ("listen", Layer::Port),
    ("command_line", Layer::Port),
    ("telemetry", Layer::Port),
    ("background_tasks", Layer::Part),
    ("wake_set", Layer::Part),
    ("watch_backoff", Layer::Part),
    ("budget", Layer::Part),
    ("crash", Layer::Part),
    ("process", Layer::Part),
    ("shutdown", Layer::Part),
    ("account", Layer::Core),
];

/// Modules that the agent must never import: it runs near foreign clusters and needs none of them.
const NOT_FOR_AGENTS: &[&str] =
    &["store", "peers", "leases", "controller", "hub", "rest", "objects", "secrets"];

fn layer(module: &str) -> Option<Layer> {
    MAP.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// Reason why `from` may not import `to`; `None` if it may.
fn objection(from: &str, to: &str) -> Option<&'static str> {
    let (Some(here), Some(there)) = (layer(from), layer(to)) else {
        return Some("one of the two is not in the map of tests/it/architecture.rs");
    };
    let of_the_agent = from == "agent" || from == "agent_program";
    if from == to {
        None
    } else if of_the_agent && NOT_FOR_AGENTS.contains(&to) {
        Some("the agent knows nothing of the operator's parts")
    } else if there < here {
        Some("imports point down")
    } else if here == there && matches!(here, Layer::Root | Layer::Sibling) {
        Some("siblings never import one another; let them meet at a port")
    } else if here == Layer::Core {
        Some("the core imports nothing of the crate")
    } else {
        None
    }
}

/// The top-level module that a source belongs to; `None` for the root itself and for programs.
fn top(source: &Source) -> Option<&str> {
    source.module.first().map(String::as_str).filter(|module| *module != "bin")
}

#[test]
fn imports_point_down() {
    let mut wrong = Vec::new();
    for source in all_sources() {
        let Some(from) = top(&source).map(str::to_owned) else { continue };
        for reference in source.references() {
            let Some(to) = reference.path.first().filter(|to| *to != "*") else { continue };
            if let Some(why) = objection(&from, to) {
                let path = reference.path.join("::");
                wrong.push(format!("{}:{}: crate::{path}: {why}", source.file, reference.line));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_module_is_in_the_map() {
    let sources = all_sources();
    let root = sources.iter().find(|source| source.file == "src/lib.rs").expect("a library has a root");
    let there: BTreeSet<_> = root.declared_modules().into_iter().collect();
    let unknown: Vec<_> = there.iter().filter(|module| layer(module).is_none()).collect();
    assert!(unknown.is_empty(), "no layer in tests/it/architecture.rs: {unknown:?}");
    let untold: Vec<_> =
        there.iter().filter(|module| !root.text.contains(&format!("[`{module}`]"))).collect();
    assert!(untold.is_empty(), "not in the table at the top of src/lib.rs: {untold:?}");
}

#[test]
fn programs_are_hinges() {
    for source in all_sources().iter().filter(|source| source.module.first().is_some_and(|one| one == "bin"))
    {
        let code = source.text.lines().filter(|line| !line.trim_start().starts_with("//")).count();
        assert!(code <= 30, "{} has {code} lines: move them into its composition root", source.file);
    }
}

#[test]
fn the_core_does_no_io_and_reads_no_clock() {
    const IMPURE: &[&[&str]] = &[
        &["tokio"],
        &["sqlx"],
        &["hyper"],
        &["tonic"],
        &["reqwest"],
        &["axum"],
        &["kube", "Client"],
        &["kube", "Api"],
        &["std", "fs"],
        &["std", "env"],
        &["std", "process"],
        &["std", "thread"],
        &["TcpStream"],
        &["UdpSocket"],
    ];
    hold_free_of("account", IMPURE);
    hold_free_of("account", CLOCKS);
}

#[test]
fn wakes_touch_nothing_outside_and_read_no_clock() {
    hold_free_of("wake_set", &[&["sqlx"], &["kube", "Client"], &["kube", "Api"], &["std", "fs"]]);
    hold_free_of("wake_set", CLOCKS);
}

/// The agent's reactions and the hub's duties are decided without I/O, like the lifecycle.
#[test]
fn what_an_agent_and_a_replica_decide_is_pure() {
    for module in [
        "agent::reactions",
        "hub::admission::drain",
        "hub::admission::hello",
        "hub::admission::queue",
        "hub::sessions::duties",
        "hub::sessions::ledger",
        "hub::static_accounts::entry",
        "hub::static_accounts::incoming",
        "hub::static_accounts::judge",
        "hub::static_accounts::listing",
        "hub::tables::assignments::row_diff",
        "hub::tables::caching_commands",
        "hub::zone_probes::probe",
        "leases::election",
        "leases::liveness",
    ] {
        hold_free_of(module, &[&["tokio"], &["tonic"], &["kube", "Client"], &["sqlx"]]);
        hold_free_of(module, CLOCKS);
    }
}

/// A part of the hub holds the parts below it, never the hub with all of them.
#[test]
fn no_part_of_the_hub_knows_the_hub() {
    for part in ["admission", "agent_status", "sessions", "static_accounts", "tables", "zone_probes"] {
        hold_free_of(&format!("hub::{part}"), &[&["Hub"]]);
    }
}

const CLOCKS: &[&[&str]] =
    &[&["Timestamp", "now"], &["Instant", "now"], &["SystemTime", "now"], &["Zoned", "now"]];

/// Checks that none of these paths occurs in the code of a module, tests aside.
fn hold_free_of(module: &str, paths: &[&[&str]]) {
    let module: Vec<_> = module.split("::").collect();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let sources: Vec<_> = all_sources().into_iter().filter(|source| source.is_below(&module)).collect();
    assert!(!sources.is_empty(), "there is no module {}", module.join("::"));
    for source in &sources {
        for path in paths {
            for line in source.mentions(path) {
                found.entry(path.join("::")).or_default().push(format!("{}:{line}", source.file));
            }
        }
    }
    assert!(found.is_empty(), "{}: {found:#?}", module.join("::"));
}

#[test]
fn the_reader_of_sources_sees_what_it_has_to() {
    let text = r##"
        use crate::{store::Store, account::{self, State}}; // crate::rest::comment
        /* crate::hub::comment */
        pub(crate) fn f<'a>(x: &'a str) -> char { super::g(); let _ = "crate::hub::text"; let _ = r#"crate::x"#; 'c' }
        mod inner { use super::super::wakes; }
        #[cfg(test)]
        mod tests { use crate::operator; }
        #[cfg(test)]
        mod elsewhere;
    "##;
    let source = Source::new("src/controller/act.rs", text);
    let found: Vec<_> = source.references().into_iter().map(|reference| reference.path.join("::")).collect();
    let expected = ["store::Store", "account", "account::State", "controller::g", "controller::wakes"];
    assert_eq!(found, expected);
    assert_eq!(source.test_modules(), ["elsewhere"]);
    assert_eq!(source.mentions(&["super", "g"]), [4]);
}
