//! Answers to Begin and to added scopes: resume positions from the stored state. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;

use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::{Resume, ScopeCheckpoint};
use kubesvc_store::{ScopeKey, ScopeState, StoredScope};

use super::scopes::DeclaredScope;

/// Maximum size of the scopes in one frame, in bytes; the rest of the frame has less than 1 KiB.
pub(crate) const MAX_FRAME_BYTES: usize = 255 * 1024;
/// Bytes of a field's tag and length.
const FIELD_HEAD_BYTES: usize = 6;

/// Stored scopes of an account.
pub(crate) struct StoredScopes<'s> {
    account_uid: &'s str,
    by_key: HashMap<&'s ScopeKey, &'s StoredScope>,
    by_kind: HashMap<(&'s str, &'s str), Vec<&'s StoredScope>>,
}

impl<'s> StoredScopes<'s> {
    pub(crate) fn new(account_uid: &'s str, scopes: &'s [StoredScope]) -> Self {
        let mut by_kind: HashMap<_, Vec<_>> = HashMap::new();
        for stored in scopes {
            by_kind.entry((&*stored.key.group, &*stored.key.kind)).or_default().push(stored);
        }
        let by_key = scopes.iter().map(|stored| (&stored.key, stored)).collect();
        Self { account_uid, by_key, by_kind }
    }

    /// Resume position of a scope.
    pub(crate) fn checkpoint(&self, declared: &DeclaredScope, now_ms: i64) -> ScopeCheckpoint {
        let scope_id = declared.id;
        let Some(stored) = self.by_key.get(&declared.key) else {
            return ScopeCheckpoint {
                scope_id,
                objects: self.overlapping_objects(&declared.key),
                // Rows of overlapping scopes may have another shape.
                resend: true,
                ..ScopeCheckpoint::default()
            };
        };
        let is_same =
            stored.account_uid == self.account_uid && stored.shape.as_ref() == Some(&declared.shape);
        let counts =
            is_same && stored.state == ScopeState::Synced && stored.filter.as_ref() == Some(&declared.filter);
        let rv = stored.resource_version.clone().filter(|_| counts).unwrap_or_default();
        // After a clock was set back, a checkpoint may lie in the future.
        let age_ms = u64::try_from(now_ms.saturating_sub(stored.last_updated_ms)).unwrap_or_default();
        // Without a complete list under this shape, some rows may have another one.
        let resend = !is_same || stored.objects.is_none();
        // Objects may be left out: the text about them may have been replaced by the reason why the scope was not read.
        let must_list = stored.problem.is_some();
        ScopeCheckpoint { scope_id, rv, age_ms, objects: count(stored), resend, must_list }
    }

    /// Number of rows of the scopes that overlap with this one.
    fn overlapping_objects(&self, key: &ScopeKey) -> u64 {
        let of_kind = self.by_kind.get(&(&*key.group, &*key.kind)).map(Vec::as_slice).unwrap_or_default();
        let overlapping =
            of_kind.iter().filter(|stored| key.namespace.is_empty() || stored.key.namespace.is_empty());
        overlapping.fold(0, |sum, stored| count(stored).saturating_add(sum))
    }

    /// Stored scopes that are not among these.
    pub(crate) fn others(&self, declared: &[Arc<DeclaredScope>]) -> Vec<String> {
        let known: HashSet<_> = declared.iter().map(|scope| &scope.key).collect();
        let others = self
            .by_key
            .iter()
            .filter(|(key, stored)| stored.state != ScopeState::Removed && !known.contains(*key));
        let mut others: Vec<_> = others.map(|(key, _)| key.to_string()).collect();
        others.sort_unstable();
        others
    }
}

fn count(stored: &StoredScope) -> u64 {
    u64::try_from(stored.objects.unwrap_or_default()).unwrap_or_default()
}

/// Splits an answer into frames of at most 256 KiB.
pub(crate) fn frames(
    fence: &Fence,
    committed_seq: u64,
    scopes: Vec<ScopeCheckpoint>,
    others: Vec<String>,
) -> Vec<Resume> {
    let frame = || Resume { fence: Some(fence.clone()), committed_seq, ..Resume::default() };
    let (mut frames, mut current, mut bytes) = (Vec::new(), frame(), 0);
    let mut room = |current: &mut Resume, more: usize| {
        if bytes + more > MAX_FRAME_BYTES {
            frames.push(std::mem::replace(current, frame()));
            bytes = 0;
        }
        bytes += more;
    };
    for scope in scopes {
        room(&mut current, scope.encoded_len() + FIELD_HEAD_BYTES);
        current.scopes.push(scope);
    }
    for other in others {
        room(&mut current, other.len() + FIELD_HEAD_BYTES);
        current.others.push(other);
    }
    current.last = true;
    frames.push(current);
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::caching::scopes::DeclaredScopes;
    use kubesvc_core::wire::common::Scope;
    use kubesvc_core::wire::events::ScopeDeclaration;

    const NOW_MS: i64 = 1_000_000;

    fn declared(id: u32, key: &str) -> Arc<DeclaredScope> {
        let key: ScopeKey = key.parse().expect("a scope");
        let scope = Scope { namespace: key.namespace, group: key.group, kind: key.kind, ..Scope::default() };
        let (shape, filter) = ("shape".to_owned(), "filter".to_owned());
        let declaration = ScopeDeclaration { scope_id: id, scope: Some(scope), shape, filter };
        DeclaredScopes::default().declare(declaration).expect("it is well-formed")
    }

    fn stored(key: &str) -> StoredScope {
        StoredScope {
            key: key.parse().expect("a scope"),
            resource_version: Some("77".into()),
            state: ScopeState::Synced,
            cached_kind: "kind".into(),
            shape: Some("shape".into()),
            filter: Some("filter".into()),
            objects: Some(12),
            last_updated_ms: NOW_MS - 5000,
            account_uid: "u".into(),
            problem: None,
        }
    }

    fn checkpoint(stored: StoredScope) -> ScopeCheckpoint {
        let stored = [stored];
        StoredScopes::new("u", &stored).checkpoint(&declared(3, ":.Pod"), NOW_MS)
    }

    #[test]
    fn a_checkpoint_counts_for_the_same_account_shape_and_filter() {
        let expected = ScopeCheckpoint {
            scope_id: 3,
            rv: "77".into(),
            age_ms: 5000,
            objects: 12,
            ..ScopeCheckpoint::default()
        };
        let must_list = ScopeCheckpoint { rv: String::new(), ..expected.clone() };
        let left_out = Some("1 object is left out: \"s/a\": it is odd".to_owned());
        let still = ScopeCheckpoint { must_list: true, ..expected.clone() };
        assert_eq!(checkpoint(StoredScope { problem: left_out, ..stored(":.Pod") }), still);
        let unread = Some("the server answered 403".to_owned());
        assert_eq!(checkpoint(StoredScope { problem: unread, ..stored(":.Pod") }), still);
        let all_bodies = ScopeCheckpoint { resend: true, ..must_list.clone() };
        let pods = || stored(":.Pod");
        assert_eq!(checkpoint(pods()), expected);
        assert_eq!(checkpoint(StoredScope { filter: Some("other".into()), ..pods() }), must_list);
        assert_eq!(checkpoint(StoredScope { filter: None, ..pods() }), must_list);
        assert_eq!(checkpoint(StoredScope { state: ScopeState::Removed, ..pods() }), must_list);
        assert_eq!(checkpoint(StoredScope { shape: Some("other".into()), ..pods() }), all_bodies);
        assert_eq!(checkpoint(StoredScope { account_uid: "before".into(), ..pods() }), all_bodies);
    }

    #[test]
    fn every_body_is_sent_again_until_a_list_is_complete() {
        let listing = StoredScope { state: ScopeState::Listing, resource_version: None, ..stored(":.Pod") };
        let again = checkpoint(listing.clone());
        assert_eq!((&*again.rv, again.objects, again.resend), ("", 12, false));
        let first = checkpoint(StoredScope { objects: None, ..listing });
        assert_eq!((&*first.rv, first.objects, first.resend), ("", 0, true));
    }

    #[test]
    fn a_checkpoint_of_the_future_has_no_age() {
        assert_eq!(checkpoint(StoredScope { last_updated_ms: NOW_MS + 1, ..stored(":.Pod") }).age_ms, 0);
        assert_eq!(checkpoint(StoredScope { last_updated_ms: i64::MIN, ..stored(":.Pod") }).rv, "77");
    }

    #[test]
    fn a_new_scope_takes_over_the_rows_of_those_that_it_overlaps() {
        let scopes = [stored("a:.Pod"), stored("b:.Pod"), stored(":apps.Deployment")];
        let all = StoredScopes::new("u", &scopes);
        let of = |key: &str| {
            let checkpoint = all.checkpoint(&declared(1, key), NOW_MS);
            assert_eq!((&*checkpoint.rv, checkpoint.resend), ("", true));
            checkpoint.objects
        };
        assert_eq!(["", "c"].map(|namespace| of(&format!("{namespace}:.Pod"))), [24, 0]);
        assert_eq!(["a:apps.Deployment", ":apps.ReplicaSet"].map(of), [12, 0]);
    }

    #[test]
    fn scopes_that_the_agent_does_not_name_are_others_unless_they_are_removed() {
        let scopes = [
            stored(":.Pod"),
            stored("b:apps.Deployment"),
            stored("a:.Pod"),
            StoredScope { state: ScopeState::Removed, ..stored(":.Secret") },
        ];
        let others = StoredScopes::new("u", &scopes).others(&[declared(1, ":.Pod")]);
        assert_eq!(others, ["a:.Pod", "b:apps.Deployment"]);
    }

    #[test]
    fn a_long_answer_is_split_into_frames_of_at_most_256_kib() {
        let fence = Fence { account_uid: "u".repeat(64), caching_epoch: 9 };
        let scopes: Vec<_> = (0..5000)
            .map(|scope_id| ScopeCheckpoint {
                scope_id,
                rv: "7".repeat(64),
                age_ms: 9,
                objects: 9,
                must_list: false,
                resend: true,
            })
            .collect();
        let others: Vec<_> = (0..1000).map(|one| format!("{one}:{}", "x".repeat(300))).collect();
        let frames = frames(&fence, 8, scopes.clone(), others.clone());
        assert!(frames.len() > 2, "{}", frames.len());
        let (mut got_scopes, mut got_others) = (Vec::new(), Vec::new());
        for (at, frame) in frames.iter().enumerate() {
            assert!(frame.encoded_len() <= 256 * 1024);
            assert_eq!((frame.fence.as_ref(), frame.committed_seq), (Some(&fence), 8));
            assert_eq!(frame.last, at + 1 == frames.len());
            got_scopes.extend(frame.scopes.clone());
            got_others.extend(frame.others.clone());
        }
        assert_eq!((got_scopes, got_others), (scopes, others));
    }

    #[test]
    fn an_answer_without_scopes_is_one_frame() {
        let frames = frames(&Fence::default(), 0, Vec::new(), Vec::new());
        assert_eq!((frames.len(), frames[0].last), (1, true));
    }
}
