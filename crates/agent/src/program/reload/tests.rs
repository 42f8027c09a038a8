//! The settings files as they change from one check to the next.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use kubesvc_core::wire::ops::AccountSpec;

struct ReloadWorld {
    folder: TempDir,
    settings: SettingsFolder,
    own: StaticAccountFile,
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("written");
}

impl ReloadWorld {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "armory-agent.yml", text);
        Self::of(folder)
    }

    fn of(folder: TempDir) -> Self {
        let settings =
            SettingsFolder::load(folder.path().to_owned(), UnknownKeys::Error).expect("good settings");
        let own = StaticAccountFile::new(split(&settings.loaded.settings.accounts).0);
        Self { folder, settings, own }
    }

    fn after(&mut self, name: &str, text: &str) -> String {
        write(self.folder.path(), name, text);
        self.names()
    }

    /// Checks the files and returns the names of the accounts in force.
    fn names(&mut self) -> String {
        // Once to notice a change, and once more to see that it is complete.
        self.settings.reload_if_changed(&self.own);
        self.settings.reload_if_changed(&self.own);
        let frames = self.own.current().frames(kubesvc_core::wire::MAX_BATCH_BYTES);
        let name = |spec: AccountSpec| spec.account.map(|account| account.name).unwrap_or_default();
        frames.into_iter().flat_map(|frame| frame.accounts).map(name).collect::<Vec<_>>().join(" ")
    }
}

fn accounts(names: &[&str]) -> String {
    let entries = names.iter().map(|name| format!("  - {{name: {name}, serviceAccount: true}}\n"));
    format!("kubernetes.accounts:\n{}", entries.collect::<String>())
}

#[test]
fn accounts_take_effect_when_a_file_changes() {
    let mut world = ReloadWorld::new(&accounts(&["a"]));
    assert_eq!(world.names(), "a");
    assert_eq!(world.after("armory-agent.yml", &accounts(&["a", "b"])), "a b");
    assert_eq!(world.after("armory-agent-local.yaml", &accounts(&["c"])), "c", "a file that was not there");
    fs::remove_file(world.folder.path().join("armory-agent-local.yaml")).expect("removed");
    assert_eq!(world.names(), "a b");
    assert_eq!(world.after("armory-agent.yml", ""), "");
}

#[test]
fn invalid_settings_file_is_reported_and_the_last_valid_one_stays_in_effect() {
    let mut world = ReloadWorld::new(&accounts(&["a"]));
    assert_eq!((world.own.valid.get(), world.own.problem()), (1, None));
    for (round, bad) in ["kubernetes: {", "kubernetes.accounts: [{name: b}]", "zonId: x"].iter().enumerate() {
        assert_eq!(world.after("armory-agent.yml", bad), "a");
        assert_eq!((world.own.valid.get(), world.own.reload_failures.get()), (0, round as u64 + 1));
        assert!(world.own.problem().is_some_and(|problem| problem.contains("armory-agent.yml:1")), "{bad}");
        assert_eq!(world.names(), "a");
        assert_eq!(world.own.reload_failures.get(), round as u64 + 1, "one bad file is one failure");
    }
    assert_eq!(world.after("armory-agent.yml", &accounts(&["b"])), "b");
    assert_eq!((world.own.valid.get(), world.own.problem()), (1, None));
}

/// Replaces the file in the same way as the kubelet.
fn swap(folder: &Path, moment: &str, text: &str) {
    fs::create_dir(folder.join(moment)).expect("a folder");
    write(&folder.join(moment), "armory-agent.yml", text);
    symlink(moment, folder.join("..new")).expect("a link");
    fs::rename(folder.join("..new"), folder.join("..data")).expect("swapped");
}

#[test]
fn a_swapped_config_map_is_a_change() {
    let folder = tempfile::tempdir().expect("a folder");
    swap(folder.path(), "..1", &accounts(&["a"]));
    symlink("..data/armory-agent.yml", folder.path().join("armory-agent.yml")).expect("a link");
    let mut world = ReloadWorld::of(folder);
    assert_eq!(world.names(), "a");
    swap(world.folder.path(), "..2", &accounts(&["b"]));
    assert_eq!(world.names(), "b");
}

#[test]
fn an_account_is_sent_with_every_field_of_the_file() {
    let text = "kubernetes.accounts:\n- {name: a, kubeconfigFile: k, context: c, insecure: true, \
                permissions: {READ: [007]}, namespaces: [n], maxResumableResourceAgeMs: 5}\n";
    let mut world = ReloadWorld::new(text);
    world.names();
    let own = world.own.current();
    let spec = own.find("a").expect("the account");
    let path = world.folder.path().join("k").display().to_string();
    assert_eq!(spec.credential, Some(kubesvc_core::wire::ops::account_spec::Credential::File(path)));
    assert_eq!((spec.context.as_str(), spec.insecure), ("c", true));
    assert_eq!((spec.read_roles.as_slice(), spec.write_roles.len()), (["007".to_owned()].as_slice(), 0));
    assert_eq!((spec.namespaces.len(), spec.max_resumable_resource_age_ms), (1, 5));
    assert!(spec.account.as_ref().is_some_and(|account| account.uid.is_empty()));
}

#[test]
fn settings_that_wait_for_the_next_start_are_those_that_differ_from_this_one() {
    let mut world = ReloadWorld::new("zoneId: z\n");
    world.after("armory-agent.yml", "zoneId: y\nserver.port: 1\n");
    assert_eq!(world.settings.logged_later, ["server.port", "zoneId"]);
    world.after("armory-agent.yml", "zoneId: y\n");
    assert_eq!(world.settings.logged_later, ["zoneId"]);
    let text = format!("zoneId: z\n{}", accounts(&["a"]));
    assert_eq!(world.after("armory-agent.yml", &text), "a");
    assert!(world.settings.logged_later.is_empty(), "the accounts are in force already");
}

#[test]
fn file_that_is_still_changing_is_not_loaded() {
    let mut world = ReloadWorld::new(&accounts(&["a", "b"]));
    for half in ["", "kubernetes.accounts:\n", &accounts(&["a"]), "kubernetes.acc"] {
        write(world.folder.path(), "armory-agent.yml", half);
        world.settings.reload_if_changed(&world.own);
        assert_eq!(
            world.own.current().frames(kubesvc_core::wire::MAX_BATCH_BYTES)[0].accounts.len(),
            2,
            "{half}"
        );
    }
    assert_eq!(world.after("armory-agent.yml", &accounts(&["a", "b", "c"])), "a b c");
    assert_eq!(world.own.reload_failures.get(), 0);
}

#[test]
fn deleted_settings_files_keep_all_accounts() {
    let mut world = ReloadWorld::new(&accounts(&["a"]));
    fs::remove_file(world.folder.path().join("armory-agent.yml")).expect("removed");
    assert_eq!(world.names(), "a");
    assert!(world.own.problem().is_some_and(|problem| problem.contains("are gone")));
    assert_eq!(world.after("armory-agent.yml", &accounts(&["b"])), "b");
    assert_eq!(world.own.problem(), None);
}
