//! Adding entries to a kubeconfig file, as `kubectl config` does: under its lock, by a rename, and nothing else changes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::terminal::{self, OutputError, format};
use serde_json::{Value, json};

use crate::account_kubeconfig::{Door, NamedAccount};
use crate::arguments::CommandError;

/// What became of the entries of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Added,
    Changed,
    Unchanged,
}

/// Why entries cannot be added.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error("it is no YAML")]
    NoYaml(#[source] serde_saphyr::Error),
    #[error("it cannot be read as a kubeconfig")]
    Unreadable(#[source] KubeconfigError),
    #[error("it cannot be written again")]
    Unwritable(#[source] OutputError),
    #[error("it is no kubeconfig")]
    NoKubeconfig,
    #[error(
        "it has {list} {name:?}, which is not of this account; choose other names with --prefix kubesvc-"
    )]
    OtherEntry { list: &'static str, name: String },
    #[error(
        "it cannot be written again as it is: {0} would change. Quote its values, or print to a file of its own instead"
    )]
    NotKept(String),
}

/// Adds the entries to a file and prints one line for each account. With `adds_user`, the user is an entry too.
pub(super) fn into_file(
    path: &Path,
    door: &Door,
    adds_user: bool,
    accounts: &[NamedAccount],
) -> Result<(), CommandError> {
    let failed = |error: io::Error| CommandError::Failed(format!("{}: {error}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // A link stays a link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let _lock = Lock::take(path)?;
    let before = match fs::read_to_string(&target) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let refused = |error: MergeError| CommandError::Failed(format!("{}: {}", path.display(), chain(&error)));
    let merged = merged(&before, door, adds_user, accounts).map_err(refused)?;
    if merged.is_changed {
        write(&target, &merged.text).map_err(failed)?;
    }
    let word = |outcome| match outcome {
        Outcome::Added => "added",
        Outcome::Changed => "changed",
        Outcome::Unchanged => "unchanged",
    };
    let lines: Vec<_> = accounts
        .iter()
        .zip(merged.outcomes)
        .map(|(account, outcome)| format!("context {} {}", account.entry, word(outcome)))
        .collect();
    Ok(terminal::print(&lines.join("\n"))?)
}

/// A file with the entries in it.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    pub(super) text: String,
    /// Whether anything is other than it was.
    pub(super) is_changed: bool,
    /// What became of each account.
    pub(super) outcomes: Vec<Outcome>,
}

/// Adds the entries to the text of a file.
pub(super) fn merged(
    before: &str,
    door: &Door,
    adds_user: bool,
    accounts: &[NamedAccount],
) -> Result<Merged, MergeError> {
    let mut document: Value = match before.trim() {
        "" => Value::Null,
        text => serde_saphyr::from_str(text).map_err(MergeError::NoYaml)?,
    };
    let (is_new_user, outcomes) = merge(&mut document, door, adds_user, accounts)?;
    let after = format::yaml(&document).map_err(MergeError::Unwritable)?;
    let after = format!("{}\n", after.trim_end());
    let read = |text: &str| Kubeconfig::from_yaml(text).map_err(MergeError::Unreadable);
    let ours: Vec<_> = accounts.iter().map(|account| account.entry.as_str()).collect();
    let user = adds_user.then_some(door.user_name.as_str());
    kept(&read(before)?, &read(&after)?, &ours, user)?;
    let is_changed = is_new_user || outcomes.iter().any(|outcome| *outcome != Outcome::Unchanged);
    Ok(Merged { text: after, is_changed, outcomes })
}

/// Adds the entries to a document. Returns whether the user changed, and what became of each account.
fn merge(
    document: &mut Value,
    door: &Door,
    adds_user: bool,
    accounts: &[NamedAccount],
) -> Result<(bool, Vec<Outcome>), MergeError> {
    if document.is_null() {
        *document = json!({"apiVersion": "v1", "kind": "Config", "current-context": ""});
    }
    if !document.is_object() || document.get("kind").is_some_and(|kind| kind != "Config") {
        return Err(MergeError::NoKubeconfig);
    }
    let mut outcomes = Vec::new();
    for account in accounts {
        let cluster = door.cluster_entry(account).map_err(|_| MergeError::NoKubeconfig)?;
        check_owner(document, account, &cluster["cluster"]["server"])?;
        let first = put(list(document, "clusters")?, cluster, "cluster", false);
        let second = put(list(document, "contexts")?, door.context_entry(account), "context", true);
        outcomes.push(match (first, second) {
            (Outcome::Unchanged, Outcome::Unchanged) => Outcome::Unchanged,
            (_, Outcome::Added) => Outcome::Added,
            _ => Outcome::Changed,
        });
    }
    let mut is_new_user = false;
    if adds_user {
        let user = door.user_entry().map_err(|_| MergeError::NoKubeconfig)?;
        is_new_user = put(list(document, "users")?, user, "user", false) != Outcome::Unchanged;
    }
    Ok((is_new_user, outcomes))
}

/// Refuses to replace entries that others made under the names of an account.
fn check_owner(document: &mut Value, account: &NamedAccount, server: &Value) -> Result<(), MergeError> {
    let name = &account.entry;
    let other = |list| MergeError::OtherEntry { list, name: name.clone() };
    let clusters = list(document, "clusters")?;
    if clusters.iter().any(|one| one["name"] == **name && one["cluster"]["server"] != *server) {
        return Err(other("cluster"));
    }
    let contexts = list(document, "contexts")?;
    if contexts.iter().any(|one| one["name"] == **name && one["context"]["cluster"] != **name) {
        return Err(other("context"));
    }
    Ok(())
}

/// A list of a kubeconfig, made if it is not there.
fn list<'d>(document: &'d mut Value, name: &str) -> Result<&'d mut Vec<Value>, MergeError> {
    let list = document.as_object_mut().ok_or(MergeError::NoKubeconfig)?.entry(name).or_insert(Value::Null);
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().ok_or(MergeError::NoKubeconfig)
}

/// Adds an entry, or replaces what the one of its name has; with `keeps_others`, only the fields that the new one has.
fn put(list: &mut Vec<Value>, entry: Value, field: &str, keeps_others: bool) -> Outcome {
    let Some(there) = list.iter_mut().find(|one| one["name"] == entry["name"]) else {
        list.push(entry);
        return Outcome::Added;
    };
    let before = there.clone();
    match (there[field].as_object_mut(), entry[field].as_object()) {
        (Some(there), Some(new)) if keeps_others => there.extend(new.clone()),
        _ => there[field] = entry[field].clone(),
    }
    if *there == before { Outcome::Unchanged } else { Outcome::Changed }
}

/// Checks that every entry of others reads as before, since a value may be written in more than one way.
fn kept(
    before: &Kubeconfig,
    after: &Kubeconfig,
    ours: &[&str],
    user: Option<&str>,
) -> Result<(), MergeError> {
    let read = |one| serde_json::to_value(one).map_err(|_| MergeError::NoKubeconfig);
    let (before, after): (Value, Value) = (read(before)?, read(after)?);
    let changed = |what: &str| Err(MergeError::NotKept(what.to_owned()));
    for (key, value) in before.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "clusters" | "contexts" | "users") {
            if after.get(key) != Some(value) {
                return changed(key);
            }
            continue;
        }
        let is_ours = |entry: &Value| match (key.as_str(), entry["name"].as_str()) {
            ("users", name) => name.is_some() && name == user,
            (_, name) => name.is_some_and(|name| ours.contains(&name)),
        };
        for entry in value.as_array().into_iter().flatten().filter(|entry| !is_ours(entry)) {
            if !after[key].as_array().is_some_and(|all| all.contains(entry)) {
                return changed(&format!("{} of {key}", entry["name"]));
            }
        }
    }
    Ok(())
}

/// Replaces a file as a whole. Its rights stay; a new one is for its owner alone.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".kubeconfig-").tempfile_in(folder)?;
    if let Ok(present) = fs::metadata(path) {
        file.as_file().set_permissions(present.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// The lock that kubectl takes: a file beside the kubeconfig.
struct Lock(PathBuf);

impl Lock {
    fn take(path: &Path) -> Result<Self, CommandError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&lock) {
            Ok(_) => Ok(Self(lock)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(CommandError::Failed(format!(
                "{} is there: another program writes the kubeconfig; try again, or remove it if none does",
                lock.display()
            ))),
            Err(error) => Err(CommandError::Failed(format!("{}: {error}", lock.display()))),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, the next writer says so.
        let _ = fs::remove_file(&self.0);
    }
}
