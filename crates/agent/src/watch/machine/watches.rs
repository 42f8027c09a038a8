//! Reports of a watch: start, events, bookmarks, end.

use std::time::Instant;

use kubesvc_core::wire::common::failure::Class;

use crate::scrub::{Exclusion, ObjectIdentity, WatchEventType};
use crate::watch::SILENCE_LIMIT;
use crate::watch::failure::RequestFailure;
use crate::watch::list::ListReason;
use crate::watch::machine::{CurrentWatch, ScopePhase, ScopeWatch, has_gone_back};
use crate::wire_failure::after_send;

/// Effect of an event. The version of a queued event is a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStep {
    Upsert,
    /// Queue the end of the object: it is gone, or is left out from now on.
    Delete,
    Skip,
}

impl ScopeWatch {
    /// Takes the cluster's version, from a list of one object.
    pub fn version_checked(&mut self, version: &str, now: Instant) {
        match &mut self.phase {
            // Any answer will do.
            ScopePhase::NeedsList { asks_first, .. } => *asks_first = false,
            ScopePhase::Watching(CurrentWatch { checks_version: true, .. }) => {
                if has_gone_back(self.position.version.as_deref(), Some(version)) {
                    self.start_list(true, ListReason::WentBack);
                } else {
                    self.start_watch(now);
                }
            }
            ScopePhase::Watching(_) | ScopePhase::AwaitsBasis(_) | ScopePhase::Listing(_) => {}
        }
    }

    /// Records that the response to the watch began, with status 200.
    pub fn watch_opened(&mut self, now: Instant) {
        if let ScopePhase::Watching(watch) = &mut self.phase
            && !watch.checks_version
        {
            watch.opened.get_or_insert(now);
            self.silence.since.get_or_insert(now);
            self.progress(now);
        }
    }

    /// Takes a change of an object, with the reason if the object is left out.
    pub fn object(
        &mut self,
        change: WatchEventType,
        object: &ObjectIdentity,
        excluded: Option<Exclusion>,
        now: Instant,
    ) -> ObjectStep {
        if !self.heard(now) {
            return ObjectStep::Skip;
        }
        self.position.version = Some(object.resource_version.clone());
        let step = match (change, excluded) {
            (WatchEventType::Deleted, None) => ObjectStep::Delete,
            (WatchEventType::Added | WatchEventType::Modified, None) => ObjectStep::Upsert,
            // The object may have an older row. An added object has none: its former end was an event.
            (WatchEventType::Modified | WatchEventType::Deleted, Some(exclusion))
                if exclusion.may_have_row() =>
            {
                ObjectStep::Delete
            }
            (_, Some(_)) => ObjectStep::Skip,
        };
        if step == ObjectStep::Skip {
            self.position.is_unsent = true;
        } else {
            self.queued(now);
        }
        step
    }

    /// Takes an event of an object that cannot be reported. Returns the version up to which the scope is read.
    pub fn unidentified_object(&mut self, now: Instant) -> Option<String> {
        if self.heard(now) { self.position.version.clone() } else { None }
    }

    /// Takes a bookmark. Returns a version to queue as a checkpoint, at most once a minute.
    pub fn bookmark(&mut self, version: &str, now: Instant) -> Option<String> {
        if !self.heard(now) {
            return None;
        }
        if self.position.version.as_deref() != Some(version) {
            self.position.version = Some(version.to_owned());
            self.position.is_unsent = true;
        }
        self.due_checkpoint(now)
    }

    /// Handles the end of the response, or of its connection. A partial last line is not lost: the watch resumes after
    /// the last event.
    pub fn watch_ended(&mut self, now: Instant) {
        let ScopePhase::Watching(watch) = self.phase else { return };
        if watch.has_lived(now) {
            self.succeeded();
            self.failures.relist_delay.reset();
            if watch.is_over(now) {
                self.start_watch(now);
            } else {
                self.resume_watch(now);
            }
            return;
        }
        let failure = after_send(Class::Unreachable, "the server ended the watch within 5 s");
        self.failed(&RequestFailure::Connection(failure), now);
    }

    /// Records an event or bookmark of the running watch. Returns whether a watch runs.
    fn heard(&mut self, now: Instant) -> bool {
        let ScopePhase::Watching(CurrentWatch { opened: Some(_), .. }) = self.phase else { return false };
        self.progress(now);
        self.silence.since = Some(now);
        self.silence.limit = SILENCE_LIMIT;
        self.failures.relist_delay.reset();
        self.is_after_pause = false;
        true
    }
}
