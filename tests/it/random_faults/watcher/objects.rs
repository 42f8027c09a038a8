//! The accounts, through a watch of the API server.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, pin_mut};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::{AccountHistory, Watcher};
use crate::random_faults::fault_log::Target;
use crate::random_faults::fault_schedule::GRACE;
use crate::random_faults::plan::{self, AGENTS, ZONES, zone_of};
use crate::random_faults::rules::ObservedAccount;
use crate::random_faults::scene::Scene;

/// Time after faults of all agents of a zone in which an account that is left alone may leave ACTIVE.
const AFTER_AGENTS: Duration = Duration::from_secs(45);
/// Pause before the API server is asked again.
const AGAIN: Duration = Duration::from_millis(200);

impl Watcher {
    pub(super) async fn watch_objects(&self, scene: &Scene) {
        let kind = GroupVersionKind::gvk("kubesvc.io", "v1alpha1", "KubesvcAccount");
        let kind = ApiResource::from_gvk_with_plural(&kind, "kubesvcaccounts");
        let client = scene.world.control_plane().client().await;
        let api: Api<DynamicObject> = Api::namespaced_with(client, scene.world.namespace(), &kind);
        let events = watcher::watcher(api, watcher::Config::default());
        pin_mut!(events);
        // Versions before a list may have been missed.
        let (mut listing, mut listed) = (false, HashSet::new());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    (listing, listed) = (true, HashSet::new());
                    self.objects.lock().missed = Some(Instant::now());
                    scene.event_log.count("also:lists of objects");
                }
                Ok(Event::InitApply(object)) => {
                    listed.insert(object.uid().unwrap_or_default());
                    self.see(scene, &object, true);
                }
                Ok(Event::InitDone) => {
                    listing = false;
                    self.only(scene, &listed);
                }
                Ok(Event::Apply(object)) => self.see(scene, &object, listing),
                Ok(Event::Delete(object)) => {
                    self.see(scene, &object, listing);
                    self.goes(scene, &object.uid().unwrap_or_default(), listing);
                }
                // The API server is away. Ask again soon, because more is missed the longer that takes.
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    fn see(&self, scene: &Scene, object: &DynamicObject, missed: bool) {
        let json = serde_json::to_value(object).unwrap_or(Value::Null);
        let seen = match ObservedAccount::read(&json) {
            Ok(seen) => seen,
            Err(why) => return scene.event_log.violation(None, format!("{why}: {json}")),
        };
        let mut objects = self.objects.lock();
        let before = objects.accounts.get(&seen.uid).map(|known| known.last.clone());
        if before.as_ref() == Some(&seen) {
            return;
        }
        scene.event_log.of_account(&seen.name, &seen);
        let mut faults = seen.faults();
        if seen.is_deleted && !seen.has_finalizer {
            // Its last version.
            faults.extend(seen.faults_at_its_end(false));
        }
        if let Some(zone) = &seen.zone {
            let key = (seen.uid.clone(), seen.epoch);
            if seen.phase == crate::random_faults::rules::Phase::Open
                && let Some(other) = objects.granted.insert(key, zone.clone())
                && other != *zone
            {
                faults.push(format!("epoch {} is of {other} and of {zone}", seen.epoch));
            }
        }
        let state = seen.state.clone();
        if let Some(before) = &before {
            faults.extend(seen.faults_after(before, missed));
            if before.state != state {
                scene.event_log.count(format!("transition:{} to {state}", before.state));
                faults.extend(self.leaves(scene, before, &seen));
            }
        }
        let shown = seen.shown();
        let known = objects.accounts.entry(seen.uid.clone()).or_insert_with(|| AccountHistory {
            last: seen.clone(),
            shown: BTreeSet::new(),
            gone: false,
        });
        known.shown.extend(shown);
        known.last = seen.clone();
        drop(objects);
        for fault in faults {
            scene.event_log.violation(Some(&seen.name), fault);
        }
    }

    /// What is wrong about leaving a state, considering the faults of agents.
    fn leaves(&self, scene: &Scene, before: &ObservedAccount, now: &ObservedAccount) -> Vec<String> {
        let mut faults = Vec::new();
        let zone = before.zone.clone().unwrap_or_default();
        if now.state == "ORPHANED"
            && let Some((agent, since)) = self.links.lock().sound(&zone)
            && since >= Duration::from_secs(GRACE + 2)
        {
            let since = since.as_secs_f64();
            faults.push(format!("it is ORPHANED, though {agent} has been connected for {since:.1} s"));
        }
        let is_settled = self.settled.lock().is_some();
        if is_settled && before.name.starts_with("steady") && before.state == "ACTIVE" {
            scene.event_log.count("also:times that an account which nobody touched left ACTIVE");
            let mut of_zone = (0..AGENTS).filter(|agent| ZONES[zone_of(*agent)] == zone);
            if let Some(agent) =
                of_zone.find(|one| !scene.fault_log.was_hit(Target::Agent(*one), AFTER_AGENTS))
            {
                let agent = plan::agent(agent);
                faults.push(format!(
                    "nobody has touched it, and {agent} has had no fault, and it is not ACTIVE"
                ));
            }
        }
        faults
    }

    /// Processes the end of a list: objects that are not in it are gone.
    fn only(&self, scene: &Scene, listed: &HashSet<String>) {
        let gone: Vec<_> = {
            let mut objects = self.objects.lock();
            objects.missed = Some(Instant::now());
            let there = objects.accounts.iter().filter(|(_, known)| !known.gone);
            there.map(|(uid, _)| uid.clone()).filter(|uid| !listed.contains(uid)).collect()
        };
        for uid in gone {
            self.goes(scene, &uid, true);
        }
    }

    fn goes(&self, scene: &Scene, uid: &str, missed: bool) {
        let last = {
            let mut objects = self.objects.lock();
            let Some(known) = objects.accounts.get_mut(uid) else { return };
            known.gone = true;
            known.last.clone()
        };
        scene
            .event_log
            .of_account(&last.name, format!("object {} is gone", uid.get(..8).unwrap_or_default()));
        for fault in last.faults_at_its_end(missed) {
            scene.event_log.violation(Some(&last.name), fault);
        }
        if !self.deletion_requested.lock().contains(uid) {
            scene.event_log.violation(Some(&last.name), "it is gone, and nobody has asked for that");
        }
    }
}
