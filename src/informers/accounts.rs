//! Index of accounts by object, uid and account name, with wake-ups for subscribers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;

use kubesvc_core::name_precedence::Precedence;
use kubesvc_core::secret_reference::secrets_of;
use kubesvc_core::{AgentKey, Installation, KubesvcAccount};
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Initial timeout for a requested list: several times what 10,000 accounts need.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum timeout for a requested list, after several attempts.
const MAX_LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Namespace and name of an account's object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountKey {
    pub namespace: String,
    pub name: String,
}

impl AccountKey {
    pub fn of(account: &KubesvcAccount) -> Self {
        Self {
            namespace: account.metadata.namespace.clone().unwrap_or_default(),
            name: account.metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Default)]
struct IndexedObject {
    account: Option<Arc<KubesvcAccount>>,
    /// Versions that this process's own writes have replaced. The watch may still show them, but they are
    /// outdated.
    superseded: HashSet<String>,
}

#[derive(Default)]
struct AccountIndexState {
    entries: HashMap<AccountKey, IndexedObject>,
    by_uid: HashMap<String, AccountKey>,
    by_account_name: BTreeMap<String, Vec<AccountKey>>,
    /// By namespace and name of the Secret.
    by_secret: HashMap<(String, String), HashSet<AccountKey>>,
    /// Number of accounts that each agent caches.
    cached: HashMap<AgentKey, usize>,
    /// Accounts that another installation serves; they are in no other collection.
    foreign: HashMap<AccountKey, Arc<ForeignAccount>>,
}

/// An account that another installation serves.
#[derive(Debug)]
pub struct ForeignAccount {
    /// The account as last seen.
    pub account: KubesvcAccount,
    /// Namespace of that installation.
    pub operator: String,
}

/// The accounts, and the subscribers to their changes. Those that another installation serves are kept aside: for all
/// readers of the index they do not exist.
pub struct AccountIndex {
    index: RwLock<AccountIndexState>,
    followers: RwLock<Vec<Weak<WorkQueue<AccountKey>>>>,
    /// Watches whose first list is complete, each with the number of lists requested before its last list
    /// started.
    listed: RwLock<HashMap<Option<String>, u64>>,
    watches: usize,
    precedence: Precedence,
    /// The installation whose accounts these are; without one, all accounts are.
    own: Option<Installation>,
    /// Other installations whose namespace is gone, so that they serve nothing.
    gone: RwLock<HashSet<Installation>>,
    synced: watch::Sender<bool>,
    /// Number of lists requested so far.
    asked: watch::Sender<u64>,
    /// Number of the last requested list that all watches have completed.
    answered: watch::Sender<u64>,
}

impl Default for AccountIndex {
    fn default() -> Self {
        Self::over(1)
    }
}

impl AccountIndex {
    /// Creates an index that is fed by `watches` watches.
    pub fn over(watches: usize) -> Self {
        Self {
            index: RwLock::default(),
            followers: RwLock::default(),
            listed: RwLock::default(),
            watches,
            precedence: Precedence::default(),
            own: None,
            gone: RwLock::default(),
            synced: watch::Sender::new(false),
            asked: watch::Sender::new(0),
            answered: watch::Sender::new(0),
        }
    }

    /// Sets the rule that decides which of several objects has their account name.
    #[must_use]
    pub fn with(self, precedence: Precedence) -> Self {
        Self { precedence, ..self }
    }

    /// Sets the installation whose accounts these are.
    #[must_use]
    pub fn served_by(self, own: Installation) -> Self {
        Self { own: Some(own), ..self }
    }

    /// Namespace of the installation that serves an account in place of this one.
    pub fn foreign_operator<'a>(&self, account: &'a KubesvcAccount) -> Option<&'a str> {
        account.foreign_operator(self.own.as_ref()?, |operator| self.is_operator_gone(operator))
    }

    /// The account at a key, if another installation serves it.
    pub fn foreign_at(&self, key: &AccountKey) -> Option<Arc<ForeignAccount>> {
        self.index.read().foreign.get(key).cloned()
    }

    /// The accounts that other installations serve.
    pub fn foreign(&self) -> Vec<Arc<ForeignAccount>> {
        self.index.read().foreign.values().cloned().collect()
    }

    /// Number of accounts that other installations serve.
    pub fn foreign_len(&self) -> usize {
        self.index.read().foreign.len()
    }

    /// Whether another installation is known to be gone.
    pub fn is_operator_gone(&self, operator: &Installation) -> bool {
        self.gone.read().contains(operator)
    }

    /// Records further installations that are gone, for good: a namespace that is made again has another uid. Their
    /// accounts are no longer kept aside.
    pub fn operators_gone(&self, gone: HashSet<Installation>) {
        self.gone.write().extend(gone);
        let mut index = self.index.write();
        let foreign = index.foreign.values();
        let own: Vec<_> =
            foreign.filter(|one| self.foreign_operator(&one.account).is_none()).cloned().collect();
        let keys: Vec<_> = own.iter().map(|one| AccountKey::of(&one.account)).collect();
        for (key, one) in keys.iter().zip(own) {
            index.put(key, one.account.clone());
        }
        drop(index);
        keys.iter().for_each(|key| self.notify(key));
    }

    pub fn precedence(&self) -> Precedence {
        self.precedence
    }

    pub fn get(&self, key: &AccountKey) -> Option<Arc<KubesvcAccount>> {
        self.index.read().entries.get(key)?.account.clone()
    }

    pub fn by_uid(&self, uid: &str) -> Option<Arc<KubesvcAccount>> {
        let index = self.index.read();
        index.entries.get(index.by_uid.get(uid)?)?.account.clone()
    }

    /// The accounts with a Spinnaker name, the one that has the name first. More than one is a conflict.
    pub fn by_account_name(&self, name: &str) -> Vec<Arc<KubesvcAccount>> {
        let index = self.index.read();
        let keys = index.by_account_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut accounts: Vec<_> =
            keys.iter().filter_map(|key| index.entries.get(key)?.account.clone()).collect();
        accounts.sort_by(|one, other| self.precedence.order(one, other));
        accounts
    }

    /// The accounts that have a kubeconfig in this Secret.
    pub fn by_secret(&self, namespace: &str, name: &str) -> Vec<Arc<KubesvcAccount>> {
        let index = self.index.read();
        let keys = index.by_secret.get(&(namespace.to_owned(), name.to_owned())).into_iter().flatten();
        keys.filter_map(|key| index.entries.get(key)?.account.clone()).collect()
    }

    /// Returns the number of accounts that each of the agents caches, in the order of `agents`.
    pub fn cached_by(&self, agents: impl Iterator<Item = AgentKey>) -> Vec<usize> {
        let index = self.index.read();
        agents.map(|agent| index.cached.get(&agent).copied().unwrap_or_default()).collect()
    }

    /// All accounts, by account name.
    pub fn all(&self) -> Vec<Arc<KubesvcAccount>> {
        let index = self.index.read();
        let keys = index.by_account_name.values().flatten();
        keys.filter_map(|key| index.entries.get(key)?.account.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.index.read().by_uid.len()
    }

    /// Whether the first complete list has been applied.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as self, so this returns only when the value is true.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Makes all watches list everything again from the API server, and waits until the lists are applied.
    /// Everything written before this call is known afterwards. If the lists are not complete within the
    /// timeout, they are requested again over new connections; the timeout doubles each time, so that a slow
    /// list can complete in the end.
    pub async fn list_anew(&self) {
        let mut list_timeout = LIST_TIMEOUT;
        while tokio::time::timeout(list_timeout, self.listed_anew()).await.is_err() {
            warn_unless_away!(?list_timeout, "the API server did not list the accounts in time; retrying");
            list_timeout = (list_timeout * 2).min(MAX_LIST_TIMEOUT);
        }
    }

    async fn listed_anew(&self) {
        let mut wanted = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
        });
        // The sender lives as long as self.
        let _ = self.answered.subscribe().wait_for(|answered| *answered >= wanted).await;
    }

    /// Number of lists requested so far; changes with each request.
    pub(super) fn asked(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }

    /// Subscribes to changes, until the returned set is dropped. The new set contains the keys of all current
    /// objects.
    pub fn follow(&self) -> Arc<WorkQueue<AccountKey>> {
        let wakes = Arc::new(WorkQueue::default());
        let mut followers = self.followers.write();
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(&wakes));
        drop(followers);
        wakes.wake_all(self.index.read().entries.keys().cloned());
        wakes
    }

    /// Applies the response to a write by this process, before the watch shows it. `replaced` is the version
    /// that the write was based on.
    pub fn written(&self, account: KubesvcAccount, replaced: &str) {
        let key = AccountKey::of(&account);
        {
            let mut index = self.index.write();
            if let Some(entry) = index.entries.get_mut(&key) {
                entry.superseded.insert(replaced.to_owned());
                let seen = entry.account.as_ref().and_then(|seen| seen.metadata.resource_version.as_deref());
                if seen != Some(replaced) {
                    return; // The watch is ahead of this response.
                }
            } else {
                return; // Deleted meanwhile.
            }
            self.put(&mut index, &key, account);
        }
        self.notify(&key);
    }

    /// Applies an object shown by the watch, unless a write by this process is known to be newer.
    pub(super) fn seen(&self, account: KubesvcAccount) {
        let key = AccountKey::of(&account);
        {
            let mut index = self.index.write();
            if let (Some(entry), Some(version)) =
                (index.entries.get_mut(&key), account.metadata.resource_version.as_deref())
            {
                if entry.superseded.contains(version) {
                    return;
                }
                if entry
                    .account
                    .as_ref()
                    .is_some_and(|known| known.metadata.resource_version.as_deref() == Some(version))
                {
                    // The watch has caught up with the last write: the replaced versions cannot come again.
                    entry.superseded.clear();
                    return;
                }
                entry.superseded.clear();
            }
            if !self.put(&mut index, &key, account) {
                return;
            }
        }
        self.notify(&key);
    }

    /// Keeps an object, aside if another installation serves it. Returns `false` if that is so as before.
    fn put(&self, index: &mut AccountIndexState, key: &AccountKey, account: KubesvcAccount) -> bool {
        let Some(operator) = self.foreign_operator(&account).map(str::to_owned) else {
            index.put(key, account);
            return true;
        };
        let was = index.foreign.get(key).map(|foreign| foreign.operator.clone());
        index.remove(key);
        let is_news = was.as_ref() != Some(&operator);
        index.foreign.insert(key.clone(), Arc::new(ForeignAccount { account, operator }));
        is_news
    }

    /// Records the start of a list of a namespace, or of all namespaces. Versions replaced by earlier writes
    /// do not appear in it, unless the API server's data were restored from a backup; then they are current
    /// again.
    pub(super) fn list_begins(&self, namespace: Option<&str>) {
        let mut index = self.index.write();
        let of_it = |key: &AccountKey| namespace.is_none_or(|namespace| namespace == key.namespace);
        index
            .entries
            .iter_mut()
            .filter(|(key, _)| of_it(key))
            .for_each(|(_, entry)| entry.superseded.clear());
    }

    /// Applies a deletion.
    pub(super) fn gone(&self, key: &AccountKey) {
        self.index.write().remove(key);
        self.notify(key);
    }

    /// Records the end of a list of a namespace, or of all namespaces: objects that are not in it are gone.
    /// `asked` is the number of lists requested before it started.
    pub(super) fn listed(&self, namespace: Option<&str>, present: &HashSet<AccountKey>, asked: u64) {
        let of_it = |key: &&AccountKey| namespace.is_none_or(|namespace| namespace == key.namespace);
        let missing: Vec<_> = {
            let index = self.index.read();
            let known = index.entries.keys().chain(index.foreign.keys());
            known.filter(of_it).filter(|key| !present.contains(*key)).cloned().collect()
        };
        for key in &missing {
            self.gone(key);
        }
        let mut listed = self.listed.write();
        listed.insert(namespace.map(str::to_owned), asked);
        if listed.len() >= self.watches {
            self.synced.send_replace(true);
            self.answered.send_replace(listed.values().copied().min().unwrap_or_default());
        }
    }

    /// For tests: applies an object as the watch shows it.
    #[cfg(test)]
    pub(crate) fn show(&self, account: KubesvcAccount) {
        self.seen(account);
    }

    /// For tests: removes an object.
    #[cfg(test)]
    pub(crate) fn hide(&self, key: &AccountKey) {
        self.gone(key);
    }

    /// For tests: number of lists requested so far.
    #[cfg(test)]
    pub(crate) fn lists_asked_for(&self) -> u64 {
        *self.asked.borrow()
    }

    /// For tests: completes all requested lists with exactly these objects.
    #[cfg(test)]
    pub(crate) fn answer_lists(&self, present: &HashSet<AccountKey>) {
        self.listed(None, present, self.lists_asked_for());
    }

    /// For tests: marks the index as synced.
    #[cfg(test)]
    pub(crate) fn sync(&self) {
        self.synced.send_replace(true);
    }

    fn notify(&self, key: &AccountKey) {
        for follower in self.followers.read().iter().filter_map(Weak::upgrade) {
            follower.wake(key.clone());
        }
    }
}

impl AccountIndexState {
    fn put(&mut self, key: &AccountKey, account: KubesvcAccount) {
        let superseded = self.take_superseded(key);
        self.remove(key);
        self.by_uid.insert(account.uid().to_owned(), key.clone());
        self.by_account_name.entry(account.account_name().to_owned()).or_default().push(key.clone());
        if let Some(agent) = caching_agent(&account) {
            *self.cached.entry(agent).or_default() += 1;
        }
        for secret in secrets_of(&account) {
            self.by_secret.entry(secret).or_default().insert(key.clone());
        }
        self.entries.insert(key.clone(), IndexedObject { account: Some(Arc::new(account)), superseded });
    }

    fn take_superseded(&mut self, key: &AccountKey) -> HashSet<String> {
        self.entries.get_mut(key).map(|entry| std::mem::take(&mut entry.superseded)).unwrap_or_default()
    }

    fn remove(&mut self, key: &AccountKey) {
        self.foreign.remove(key);
        let Some(IndexedObject { account: Some(old), .. }) = self.entries.remove(key) else { return };
        self.by_uid.remove(old.uid());
        if let Some(keys) = self.by_account_name.get_mut(old.account_name()) {
            keys.retain(|one| one != key);
            if keys.is_empty() {
                self.by_account_name.remove(old.account_name());
            }
        }
        if let Some(agent) = caching_agent(&old)
            && let Some(count) = self.cached.get_mut(&agent)
        {
            *count -= 1;
            if *count == 0 {
                self.cached.remove(&agent);
            }
        }
        for secret in secrets_of(&old) {
            let Some(keys) = self.by_secret.get_mut(&secret) else { continue };
            keys.remove(key);
            if keys.is_empty() {
                self.by_secret.remove(&secret);
            }
        }
    }
}

fn caching_agent(account: &KubesvcAccount) -> Option<AgentKey> {
    account.status.as_ref()?.caching_agent_key()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::spec::SecretKeyReference;
    use kubesvc_core::{CachingAssignment, CachingEpoch, KubesvcAccountSpec, KubesvcAccountStatus};

    fn account(name: &str, uid: &str, version: &str) -> KubesvcAccount {
        let mut account = KubesvcAccount::new(name, KubesvcAccountSpec::default());
        account.metadata.namespace = Some("ns".to_owned());
        account.metadata.uid = Some(uid.to_owned());
        account.metadata.resource_version = Some(version.to_owned());
        account
    }

    fn key(name: &str) -> AccountKey {
        AccountKey { namespace: "ns".to_owned(), name: name.to_owned() }
    }

    fn version_of(accounts: &AccountIndex, name: &str) -> Option<String> {
        accounts.get(&key(name))?.metadata.resource_version.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn list_that_times_out_is_requested_again() {
        let accounts = AccountIndex::default();
        let mut wishes = accounts.asked();
        let silent_twice = async {
            for _ in 0..2 {
                wishes.changed().await.expect("the accounts are there");
            }
            accounts.listed(None, &HashSet::new(), *wishes.borrow_and_update());
        };
        let begun = tokio::time::Instant::now();
        tokio::join!(accounts.list_anew(), silent_twice);
        assert_eq!(begun.elapsed(), LIST_TIMEOUT);
    }

    #[test]
    fn late_watch_event_does_not_undo_our_write() {
        let accounts = AccountIndex::default();
        accounts.seen(account("a", "1", "10"));
        accounts.written(account("a", "1", "11"), "10");
        accounts.written(account("a", "1", "12"), "11");
        accounts.seen(account("a", "1", "10"));
        accounts.seen(account("a", "1", "11"));
        assert_eq!(version_of(&accounts, "a").as_deref(), Some("12"));
    }

    #[test]
    fn a_version_that_a_write_replaced_is_taken_in_if_a_later_list_shows_it_as_after_a_restore() {
        let accounts = AccountIndex::default();
        accounts.seen(account("a", "1", "10"));
        accounts.written(account("a", "1", "11"), "10");
        accounts.list_begins(Some("other"));
        accounts.seen(account("a", "1", "10"));
        assert_eq!(version_of(&accounts, "a").as_deref(), Some("11"));
        accounts.list_begins(None);
        accounts.seen(account("a", "1", "10"));
        assert_eq!(version_of(&accounts, "a").as_deref(), Some("10"));
    }

    #[test]
    fn write_by_another_client_is_applied() {
        let accounts = AccountIndex::default();
        accounts.seen(account("a", "1", "10"));
        accounts.written(account("a", "1", "11"), "10");
        accounts.seen(account("a", "1", "99"));
        assert_eq!(version_of(&accounts, "a").as_deref(), Some("99"));
        accounts.written(account("a", "1", "12"), "11");
        assert_eq!(version_of(&accounts, "a").as_deref(), Some("99"), "the watch was ahead of the answer");
    }

    #[test]
    fn watch_event_of_our_own_write_wakes_no_subscriber() {
        let accounts = AccountIndex::default();
        accounts.seen(account("a", "1", "10"));
        let follower = accounts.follow();
        follower.try_take(10);
        accounts.written(account("a", "1", "11"), "10");
        assert_eq!(follower.try_take(10), [key("a")]);
        accounts.seen(account("a", "1", "11"));
        assert!(follower.is_empty());
    }

    #[test]
    fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
        let accounts = AccountIndex::default();
        accounts.seen(account("a", "1", "10"));
        accounts.gone(&key("a"));
        accounts.written(account("a", "1", "11"), "10");
        assert!(accounts.get(&key("a")).is_none() && accounts.by_uid("1").is_none());
    }

    #[test]
    fn a_list_of_one_namespace_leaves_the_others_alone() {
        let accounts = AccountIndex::over(2);
        accounts.seen(account("a", "1", "10"));
        let mut other = account("b", "2", "11");
        other.metadata.namespace = Some("other".to_owned());
        accounts.seen(other);
        accounts.listed(Some("other"), &HashSet::new(), 0);
        assert!(!accounts.is_synced(), "one of two lists is complete");
        accounts.listed(Some("ns"), &HashSet::from([key("a")]), 0);
        assert!(accounts.is_synced());
        assert_eq!(accounts.len(), 1);
    }

    #[test]
    fn a_secret_leads_to_the_accounts_that_name_it_now() {
        let accounts = AccountIndex::default();
        let naming = |name: &str, uid: &str, version: &str, secret: &str| {
            let mut account = account(name, uid, version);
            account.spec.kubeconfig.secret_ref =
                Some(SecretKeyReference { name: secret.to_owned(), key: None });
            account
        };
        accounts.seen(naming("a", "1", "10", "one"));
        accounts.seen(naming("b", "2", "11", "one"));
        accounts.seen(naming("b", "2", "12", "two"));
        let uids = |namespace: &str, secret: &str| {
            let mut found: Vec<_> =
                accounts.by_secret(namespace, secret).iter().map(|one| one.uid().to_owned()).collect();
            found.sort();
            found
        };
        assert_eq!((uids("ns", "one"), uids("ns", "two")), (vec!["1".to_owned()], vec!["2".to_owned()]));
        assert_eq!(uids("other", "one"), Vec::<String>::new());
        accounts.gone(&key("a"));
        assert_eq!(uids("ns", "one"), Vec::<String>::new());
    }

    #[test]
    fn it_is_known_how_many_accounts_each_agent_caches() {
        let accounts = AccountIndex::default();
        let cached = |name: &str, version: &str, agent: Option<&str>| {
            let mut account = account(name, name, version);
            let agent_id = agent.map(str::to_owned);
            let caching = CachingAssignment {
                agent_id: agent_id.map(Into::into),
                boot_id: None,
                epoch: CachingEpoch(1),
            };
            let zone_id = Some("z".into());
            account.status =
                Some(KubesvcAccountStatus { caching: Some(caching), zone_id, ..Default::default() });
            account
        };
        accounts.seen(cached("a", "10", Some("x")));
        accounts.seen(cached("b", "11", Some("x")));
        let loads = || {
            let agents = [("x", "z"), ("y", "z"), ("x", "another")];
            accounts.cached_by(agents.into_iter().map(|(id, zone)| AgentKey::new(&id.into(), &zone.into())))
        };
        assert_eq!(loads(), [2, 0, 0]);
        accounts.seen(cached("b", "12", Some("y")));
        assert_eq!(loads(), [1, 1, 0]);
        accounts.seen(cached("b", "13", None));
        accounts.gone(&key("a"));
        assert_eq!(loads(), [0, 0, 0]);
    }

    #[test]
    fn an_account_that_another_installation_serves_is_kept_aside_until_it_is_gone_or_hands_it_over() {
        let installation =
            |name: &str| Installation { namespace: name.to_owned(), uid: format!("uid-of-{name}") };
        let accounts = AccountIndex::default().served_by(installation("own"));
        let served = |version: &str, by: &str| {
            let mut account = account("a", "1", version);
            account.status = Some(KubesvcAccountStatus {
                operator: Some(installation(by)),
                ..KubesvcAccountStatus::default()
            });
            account
        };
        let (is_known, aside) = (
            || (accounts.get(&key("a")).is_some(), accounts.by_uid("1").is_some(), accounts.len()),
            || accounts.foreign_at(&key("a")).map(|foreign| foreign.operator.clone()),
        );
        accounts.seen(account("a", "1", "10"));
        let follower = accounts.follow();
        follower.try_take(10);
        // The other one was first.
        accounts.seen(served("11", "other"));
        assert_eq!((is_known(), aside().as_deref()), ((false, false, 0), Some("other")));
        assert_eq!(follower.try_take(10), [key("a")]);
        accounts.seen(served("12", "other"));
        assert!(follower.is_empty(), "what the other one writes is not ours to look at");
        assert_eq!(accounts.foreign_len(), 1);

        accounts.operators_gone(HashSet::from([installation("another")]));
        assert!(aside().is_some());
        accounts.operators_gone(HashSet::from([installation("other")]));
        assert_eq!((is_known(), aside()), ((true, true, 1), None));
        assert_eq!(follower.try_take(10), [key("a")]);

        accounts.operators_gone(HashSet::new());
        accounts.seen(served("13", "other"));
        assert_eq!((is_known(), aside()), ((true, true, 1), None), "it stays gone");
        accounts.seen(served("13b", "third"));
        assert!(aside().is_some());
        accounts.seen(served("14", "own"));
        assert_eq!((is_known(), aside()), ((true, true, 1), None));
        accounts.seen(served("15", "third"));
        accounts.listed(None, &HashSet::new(), 0);
        assert_eq!((is_known(), aside()), ((false, false, 0), None), "the object is gone");
    }

    #[test]
    fn the_older_of_two_objects_with_one_account_name_comes_first() {
        let accounts = AccountIndex::default();
        for (name, uid, second) in [("young", "1", 20), ("old", "2", 10)] {
            let mut one = account(name, uid, uid);
            one.spec.account_name = Some("same".to_owned());
            let time = jiff::Timestamp::from_second(second).expect("a small number is a time");
            one.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
            accounts.seen(one);
        }
        let names: Vec<_> = accounts.by_account_name("same").iter().map(|one| one.uid().to_owned()).collect();
        assert_eq!(names, ["2", "1"]);
    }
}
