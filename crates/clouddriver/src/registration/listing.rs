//! The names that Clouddriver has loaded, as its last two lists of accounts had them.

use std::collections::HashSet;

use super::Tick;

/// The last two lists of `GET /credentials`, and whether the last read succeeded.
#[derive(Clone, Debug, Default)]
pub struct LoadedNames {
    last: Option<NameList>,
    previous: Option<NameList>,
    /// Why the last read failed; `None`: it succeeded, or there was none.
    failure: Option<super::CallFailure>,
}

#[derive(Clone, Debug)]
struct NameList {
    names: HashSet<String>,
    at: Tick,
}

impl LoadedNames {
    /// A complete list was read. An empty one after one with names says nothing: a Clouddriver that has just started answers
    /// so until it has loaded its accounts.
    pub fn read(&mut self, now: Tick, names: HashSet<String>) {
        self.failure = None;
        let had_names = self.last.as_ref().is_some_and(|last| !last.names.is_empty());
        if names.is_empty() && had_names {
            (self.last, self.previous) = (None, None);
            return;
        }
        self.previous = self.last.replace(NameList { names, at: now });
    }

    /// The list could not be read. Those before say nothing of a Clouddriver that may have been restarted.
    pub fn failed(&mut self, failure: super::CallFailure) {
        (self.last, self.previous) = (None, None);
        self.failure = Some(failure);
    }

    /// Why the last read failed.
    pub fn failure(&self) -> Option<&super::CallFailure> {
        self.failure.as_ref()
    }

    /// Whether the last read succeeded, so that calls are worth a try.
    pub fn is_current(&self) -> bool {
        self.last.is_some() && self.failure.is_none()
    }

    /// Whether the newest list has a name.
    pub fn has(&self, name: &str) -> bool {
        self.last.as_ref().is_some_and(|list| list.names.contains(name))
    }

    /// The names that the newest list has, and the one before it lacks.
    pub fn appeared(&self) -> impl Iterator<Item = &String> {
        let lists = self.last.as_ref().zip(self.previous.as_ref());
        lists.into_iter().flat_map(|(last, previous)| last.names.difference(&previous.names))
    }

    /// Whether the newest list has a name that the one before it lacks.
    pub(super) fn has_appeared(&self, name: &str) -> bool {
        self.has(name) && self.previous.as_ref().is_some_and(|list| !list.names.contains(name))
    }

    /// Whether one of the last two lists has a name.
    pub fn had_lately(&self, name: &str) -> bool {
        [&self.last, &self.previous].into_iter().flatten().any(|list| list.names.contains(name))
    }

    /// Whether the newest list was read since a tick, and lacks the name.
    pub fn newest_lacks_since(&self, name: &str, since: Tick) -> bool {
        self.last.as_ref().is_some_and(|list| list.at > since && !list.names.contains(name))
    }

    /// Whether there are two lists, and neither has the name.
    pub fn lacks(&self, name: &str) -> bool {
        self.lacks_since(name, 0)
    }

    /// Whether two lists were read since a tick, and neither has the name.
    pub fn lacks_since(&self, name: &str, since: Tick) -> bool {
        [&self.last, &self.previous]
            .iter()
            .all(|list| list.as_ref().is_some_and(|list| list.at >= since && !list.names.contains(name)))
    }

    /// Whether two lists were read since a tick.
    pub fn is_read_twice_since(&self, since: Tick) -> bool {
        [&self.last, &self.previous].iter().all(|list| list.as_ref().is_some_and(|list| list.at >= since))
    }
}
