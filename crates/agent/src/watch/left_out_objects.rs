//! Objects of a scope that cannot be reported, as its reader finds them. Pure.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use crate::scrub::Unidentified;
use kubesvc_core::cache::left_out_objects::MAX_NAMED;
use kubesvc_core::wire::events::{LeftOutObject, LeftOutObjects};

/// Maximum number of objects that are counted.
const MAX_COUNTED: usize = 4_096;

/// Objects found by one list and the watch after it.
#[derive(Clone, Debug, Default)]
struct FoundObjects {
    hasher: RandomState,
    all: HashSet<u64>,
    /// The first named objects, each with its defect.
    named: BTreeMap<(String, String), String>,
}

/// Objects of a scope that are left out. Findings from before a list count until it is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct LeftOutSet {
    /// Absent for most scopes.
    now: Option<Box<FoundObjects>>,
    /// Found by the running list.
    listed: Option<Box<FoundObjects>>,
}

impl FoundObjects {
    fn hash(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }

    fn insert(&mut self, object: &Unidentified) -> bool {
        let hash = self.hash(&object.namespace, &object.name);
        let is_new = self.all.len() < MAX_COUNTED && self.all.insert(hash);
        if is_new && object.has_name() && self.named.len() < MAX_NAMED {
            self.named.insert((object.namespace.clone(), object.name.clone()), object.why.to_string());
        }
        is_new
    }

    fn remove(&mut self, namespace: &str, name: &str) -> bool {
        let hash = self.hash(namespace, name);
        self.named.remove(&(namespace.to_owned(), name.to_owned()));
        self.all.remove(&hash)
    }
}

impl LeftOutSet {
    /// Begins a list, whose findings replace the former ones at its end.
    pub(super) fn list_begins(&mut self) {
        self.listed = None;
    }

    /// Records an object of the running list.
    pub(super) fn listed(&mut self, object: &Unidentified) {
        self.listed.get_or_insert_default().insert(object);
    }

    pub(super) fn list_ends(&mut self) {
        self.now = self.listed.take();
    }

    /// Records an object of a watch. Returns whether the set changed.
    pub(super) fn watched(&mut self, object: &Unidentified) -> bool {
        self.now.get_or_insert_default().insert(object)
    }

    /// Records that an object can be reported or is gone. Returns whether the set changed.
    pub(super) fn resolved(&mut self, namespace: &str, name: &str) -> bool {
        self.now.as_mut().is_some_and(|now| now.remove(namespace, name))
    }

    /// The objects as sent to the hub.
    pub(super) fn told(&self) -> LeftOutObjects {
        let Some(now) = &self.now else { return LeftOutObjects::default() };
        let objects = now.named.iter().map(|((namespace, name), why)| LeftOutObject {
            namespace: namespace.clone(),
            name: name.clone(),
            why: why.clone(),
        });
        LeftOutObjects { count: u32::try_from(now.all.len()).unwrap_or(u32::MAX), objects: objects.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrub::identity::IdentityError;

    fn object(name: &str) -> Unidentified {
        Unidentified {
            kind: "Pod".into(),
            namespace: "shop".into(),
            name: name.into(),
            why: IdentityError::TooLong { field: "metadata.resourceVersion", max: 64 },
        }
    }

    fn names(set: &LeftOutSet) -> Vec<String> {
        set.told().objects.into_iter().map(|object| object.name).collect()
    }

    #[test]
    fn complete_list_replaces_what_was_known_and_a_watch_changes_it() {
        let mut set = LeftOutSet::default();
        assert_eq!(set.told(), LeftOutObjects::default());
        set.list_begins();
        set.listed(&object("a"));
        assert_eq!(set.told().count, 0, "the list is not complete");
        set.list_ends();
        assert_eq!((set.told().count, names(&set)), (1, vec!["a".to_owned()]));
        assert_eq!(set.told().objects[0].why, "metadata.resourceVersion has more than 64 characters");
        assert_eq!((set.watched(&object("b")), set.watched(&object("b"))), (true, false));
        assert_eq!((set.resolved("shop", "a"), set.resolved("shop", "a")), (true, false));
        assert_eq!((set.told().count, names(&set)), (1, vec!["b".to_owned()]));
        set.list_begins();
        set.listed(&object("c"));
        set.list_begins();
        set.listed(&object("d"));
        set.list_ends();
        assert_eq!(
            (set.told().count, names(&set)),
            (1, vec!["d".to_owned()]),
            "a list begins anew with nothing"
        );
        set.list_begins();
        set.list_ends();
        assert_eq!(set.told(), LeftOutObjects::default());
    }

    #[test]
    fn objects_are_counted_beyond_those_that_are_named() {
        let mut set = LeftOutSet::default();
        for number in 0..2 * MAX_COUNTED {
            set.listed(&object(&format!("{number:05}")));
        }
        set.list_ends();
        let told = set.told();
        assert_eq!((told.count, told.objects.len()), (u32::try_from(MAX_COUNTED).expect("small"), MAX_NAMED));
        let nameless = Unidentified { why: IdentityError::Missing("metadata.name"), ..object("") };
        let mut set = LeftOutSet::default();
        set.watched(&nameless);
        assert_eq!((set.told().count, set.told().objects.len()), (1, 0));
    }
}
