//! Which agents list which account names in their own files, according to the agents' objects. The status of declared
//! accounts of these names shows it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Controller;
use crate::informers::AccountKey;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::{KubesvcAccount, KubesvcAgent, ListingAgent, object_names};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};

/// Maximum number of changed agents processed at once.
const BATCH: usize = 1000;

/// A digest of an account name, as stored in agents' objects.
type NameDigest = u64;

/// The account names that agents list.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    /// By name of the agent's object: the object as last processed.
    by_agent: HashMap<String, Arc<KubesvcAgent>>,
    by_digest: BTreeSet<(NameDigest, Arc<ListingAgent>)>,
    /// Whether all existing agents were processed once.
    is_complete: bool,
}

impl Listings {
    /// Processes the current object of an agent; `None` if it is gone. Returns the names that are newly listed or no
    /// longer listed.
    fn update(&self, name: &str, agent: Option<Arc<KubesvcAgent>>) -> HashSet<NameDigest> {
        // Lists of agents that were never approved do not count.
        let agent = agent.filter(|agent| agent.was_approved() && !listed(agent).is_empty());
        let mut all = self.0.lock();
        let before = match &agent {
            Some(agent) => all.by_agent.insert(name.to_owned(), Arc::clone(agent)),
            None => all.by_agent.remove(name),
        };
        let digests = |agent: Option<&KubesvcAgent>| -> HashSet<NameDigest> {
            agent.map(listed).unwrap_or_default().iter().filter_map(|text| parse(text)).collect()
        };
        let (was, is) = (digests(before.as_deref()), digests(agent.as_deref()));
        if let Some(before) = &before {
            let listing = listing_agent(before);
            for digest in was.difference(&is) {
                all.by_digest.remove(&(*digest, Arc::clone(&listing)));
            }
        }
        if let Some(agent) = &agent {
            let listing = listing_agent(agent);
            all.by_digest.extend(is.difference(&was).map(|digest| (*digest, Arc::clone(&listing))));
        }
        was.symmetric_difference(&is).copied().collect()
    }

    fn complete(&self) {
        self.0.lock().is_complete = true;
    }

    /// An agent that lists the name of a declared account. Prefers the one that the account's status names, so that
    /// the status does not change with each agent that comes or goes; otherwise the first by zone and id.
    pub(super) fn of(&self, account: &KubesvcAccount) -> Fact<Option<Arc<ListingAgent>>> {
        if account.is_static() {
            return Fact::Known(None);
        }
        let all = self.0.lock();
        if !all.is_complete {
            return Fact::Unknown;
        }
        let Some(digest) = parse(&object_names::digest(account.account_name())) else {
            return Fact::Known(None);
        };
        let named = account.status.as_ref().and_then(|status| status.listed_by.clone());
        if let Some(named) = named.map(Arc::new)
            && all.by_digest.contains(&(digest, Arc::clone(&named)))
        {
            return Fact::Known(Some(named));
        }
        let first = all.by_digest.range((digest, Arc::default())..).next();
        Fact::Known(first.filter(|(of, _)| *of == digest).map(|(_, agent)| Arc::clone(agent)))
    }
}

/// Follows the agents' objects, and wakes the declared accounts whose names are newly listed or no longer listed.
pub(super) async fn follow(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    if stop.run_until_cancelled(context.agents.synced()).await.is_none() {
        return;
    }
    let mut changed = HashSet::new();
    for agent in context.agents.all() {
        let name = agent.metadata.name.clone().unwrap_or_default();
        changed.extend(controller.listings.update(&name, Some(agent)));
    }
    controller.listings.complete();
    wake(controller, &changed, |account| {
        account.status.as_ref().is_some_and(|status| status.listed_by.is_some())
    });
    let task = TaskSpec::new("accounts of agents' files", "Wakes declared accounts whose names agents list");
    let task = task.woken_by(&context.changed_agents).batch(BATCH);
    let update = |names: Vec<String>| async move {
        let mut changed = HashSet::new();
        for name in names {
            changed.extend(controller.listings.update(&name, context.agents.get(&name)));
        }
        if !changed.is_empty() {
            wake(controller, &changed, |_| false);
        }
        AttemptOutcome::Done
    };
    context.tasks.drive(task, stop, update).await;
}

fn wake(controller: &Controller, changed: &HashSet<NameDigest>, too: impl Fn(&KubesvcAccount) -> bool) {
    let accounts = controller.context.accounts.all();
    let declared = accounts.iter().filter(|account| !account.is_static());
    let concerned = declared.filter(|account| {
        too(account)
            || parse(&object_names::digest(account.account_name())).is_some_and(|one| changed.contains(&one))
    });
    controller.schedule.wakes.wake_all(concerned.map(|account| AccountKey::of(account)));
}

fn listed(agent: &KubesvcAgent) -> &[String] {
    agent.status.as_ref().and_then(|status| status.static_accounts.as_deref()).unwrap_or_default()
}

fn listing_agent(agent: &KubesvcAgent) -> Arc<ListingAgent> {
    let (zone_id, agent_id) = (agent.spec.zone_id.clone(), agent.spec.agent_id.clone());
    Arc::new(ListingAgent { zone_id, agent_id })
}

fn parse(digest: &str) -> Option<NameDigest> {
    NameDigest::from_str_radix(digest, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::{
        KubesvcAccountSpec, KubesvcAgentSpec, KubesvcAgentStatus, ORIGIN_AGENT, ORIGIN_LABEL,
    };

    fn agent(id: &str, approved: bool, names: &[&str]) -> Arc<KubesvcAgent> {
        let spec = KubesvcAgentSpec { agent_id: id.into(), zone_id: "east".into(), approved };
        let mut agent = KubesvcAgent::new(id, spec);
        let digests = names.iter().map(|name| object_names::digest(name)).collect();
        agent.status = Some(KubesvcAgentStatus { static_accounts: Some(digests), ..Default::default() });
        Arc::new(agent)
    }

    fn account(name: &str) -> KubesvcAccount {
        KubesvcAccount::new(name, KubesvcAccountSpec::default())
    }

    fn lister(listings: &Listings, account: &KubesvcAccount) -> Option<String> {
        match listings.of(account) {
            Fact::Known(agent) => (agent.map(|agent| agent.agent_id.clone())).map(String::from),
            Fact::Unknown => unreachable!("the list is complete"),
        }
    }

    #[test]
    fn listing_agent_is_unknown_until_all_agents_are_read() {
        let listings = Listings::default();
        listings.update("a", Some(agent("a", true, &["prod"])));
        assert_eq!(listings.of(&account("prod")), Fact::Unknown);
        listings.complete();
        assert_eq!(lister(&listings, &account("prod")).as_deref(), Some("a"));
        assert_eq!(lister(&listings, &account("test")), None);
    }

    #[test]
    fn the_agent_that_the_status_names_is_named_as_long_as_it_lists_the_account() {
        let (listings, mut prod) = (Listings::default(), account("prod"));
        listings.complete();
        listings.update("b", Some(agent("b", true, &["prod", "other"])));
        let named = ListingAgent { agent_id: "b".into(), zone_id: "east".into() };
        prod.status.get_or_insert_default().listed_by = Some(named);
        listings.update("a", Some(agent("a", true, &["prod"])));
        assert_eq!(lister(&listings, &prod).as_deref(), Some("b"), "though a comes first");
        listings.update("b", Some(agent("b", true, &["other"])));
        assert_eq!(lister(&listings, &prod).as_deref(), Some("a"));
        listings.update("a", None);
        assert_eq!(lister(&listings, &prod), None);
    }

    #[test]
    fn accounts_wake_when_their_name_is_listed_or_unlisted() {
        let listings = Listings::default();
        let digests = |names: &[&str]| -> HashSet<NameDigest> {
            names.iter().filter_map(|name| parse(&object_names::digest(name))).collect()
        };
        assert_eq!(listings.update("a", Some(agent("a", true, &["x", "y"]))), digests(&["x", "y"]));
        assert_eq!(listings.update("a", Some(agent("a", true, &["y", "z"]))), digests(&["x", "z"]));
        assert_eq!(listings.update("a", Some(agent("a", true, &["y", "z"]))), digests(&[]));
        assert_eq!(listings.update("a", None), digests(&["y", "z"]));
        assert!(listings.0.lock().by_digest.is_empty());
    }

    #[test]
    fn an_agent_that_was_never_approved_lists_nothing_and_an_account_of_an_agents_own_is_beside_none() {
        let listings = Listings::default();
        listings.complete();
        listings.update("a", Some(agent("a", false, &["prod"])));
        assert_eq!(lister(&listings, &account("prod")), None);
        listings.update("a", Some(agent("a", true, &["prod"])));
        let mut own = account("prod");
        own.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
        assert_eq!(lister(&listings, &own), None);
        assert_eq!(lister(&listings, &account("prod")).as_deref(), Some("a"));
    }
}
