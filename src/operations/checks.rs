//! What is decided of an operation before it runs: who may, for how long, under which id, and which one it is. Pure.

use std::fmt;
use std::time::Duration;

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use kubesvc_core::operations::{MAX_DEADLINE, ObjectKey, Operation, OperationVerb, delete_wait};
use kubesvc_core::wire::operations as wire;
use kubesvc_core::wire::operations::operation::Verb;
use kubesvc_core::{GrantPhase, KubesvcAccount, State};

/// Namespace of objects whose manifest names none.
const DEFAULT_NAMESPACE: &str = "default";
/// Size of the digest of what an operation does, in bytes.
const CONTENT_DIGEST_BYTES: usize = 5;

/// The verbs of RBAC that a caller needs on `accounts/proxy`.
pub(super) fn required_verbs(verb: OperationVerb) -> &'static [&'static str] {
    match verb.name {
        "Deploy" => &["create", "patch"],
        "Delete" => &["delete"],
        _ if verb.reads => &["get"],
        _ => &["patch"],
    }
}

/// Whether an account takes requests, as far as its object says; otherwise the state that it is in.
pub(super) fn usable(account: &KubesvcAccount) -> Result<(), State> {
    let status = account.status_or_default();
    let state = status.state();
    let is_open = status.phase() == GrantPhase::Open
        && matches!(state, State::Active | State::Activating | State::Failed)
        && status.granted_zone().is_some();
    if is_open && !account.is_being_deleted() { Ok(()) } else { Err(state) }
}

/// Time for all requests of an operation. A delete has the time in which it waits on top of the usual one.
pub(super) fn time_limit(operation: &Operation, write: Duration, read: Duration) -> Duration {
    let usual = match operation.verb() {
        _ if operation.kind().reads => read,
        Verb::Delete(delete) => write.saturating_add(delete_wait(delete)),
        _ => write,
    };
    operation.deadline().unwrap_or(usual).min(MAX_DEADLINE)
}

/// Whether the answer to a write decides how the operation ended. If not, what a replica that died left open stays
/// unknown, whatever the answer was.
pub(super) fn is_decisive(operation: &Operation, runs_once: bool, method: &str, media: Option<&str>) -> bool {
    match operation.verb() {
        // Of an object that is made anew the delete comes first.
        Verb::Deploy(_) if runs_once => method == "POST",
        // A server-side apply moves the managers of fields before.
        Verb::Deploy(_) if media == Some("application/json-patch+json") => false,
        Verb::Delete(delete) => delete.label_selector.is_empty(),
        _ => true,
    }
}

/// Whether the answer to its first write decides how an operation ends, as far as can be said before.
pub(super) fn first_write_decides(operation: &Operation) -> bool {
    match operation.verb() {
        Verb::Delete(delete) => delete.label_selector.is_empty(),
        _ => !operation.kind().reads,
    }
}

/// What must be the same in two calls with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperationIdentity {
    pub(super) account: String,
    /// The name alone is not enough: an account that was deleted may be made anew for another cluster.
    pub(super) account_uid: String,
    pub(super) verb: &'static str,
    /// SHA-256 of what it does: it is known for minutes after the operation has ended, and a manifest has up to 4 MiB.
    content: [u8; 32],
    pub(super) dry_run: bool,
}

impl OperationIdentity {
    pub(super) fn of(operation: &Operation, account_uid: &str, dry_run: bool) -> Self {
        Self {
            account: operation.account().name.clone(),
            account_uid: account_uid.to_owned(),
            verb: operation.kind().name,
            content: content(operation),
            dry_run,
        }
    }

    /// A digest of what it does.
    pub(super) fn digest(&self) -> ContentDigest {
        let mut bytes = [0; CONTENT_DIGEST_BYTES];
        bytes.copy_from_slice(&self.content[..CONTENT_DIGEST_BYTES]);
        ContentDigest(bytes)
    }
}

/// A digest of what an operation does. The ids of its writes end with it, so that its row says that too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentDigest([u8; CONTENT_DIGEST_BYTES]);

impl ContentDigest {
    /// A new id of a request: a ULID, whose last 40 bits are not random but these.
    pub(super) fn request_id(self) -> String {
        let mut bytes = Ulid::generate().to_bytes();
        let random = bytes.len() - CONTENT_DIGEST_BYTES;
        bytes[random..].copy_from_slice(&self.0);
        Ulid::from_bytes(bytes).to_string()
    }

    /// Whether the id of a request was made of this digest.
    pub(super) fn is_of(self, request_id: &str) -> bool {
        Ulid::from_string(request_id).is_ok_and(|id| id.to_bytes().ends_with(&self.0))
    }
}

/// Digest of what an operation does: its verb with all fields, and a manifest or patch by its contents, however they are
/// written. The text of the contents is hashed as it is written: it may have megabytes.
fn content(operation: &Operation) -> [u8; 32] {
    let verb = wire::Operation { verb: Some(operation.verb().clone()), ..wire::Operation::default() };
    let verb = verb.encode_length_delimited_to_vec();
    let mut digest = Digested(Sha256::new().chain_update(b"kubesvc content\0").chain_update(verb));
    // A digest takes any text.
    let _ = operation.write_canonical_document(&mut digest);
    digest.0.finalize().into()
}

struct Digested(Sha256);

impl fmt::Write for Digested {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// The object for which operations take turns.
pub(super) fn turn(operation: &Operation) -> Option<ObjectKey> {
    let mut object = operation.object()?;
    if object.namespace.is_empty() {
        DEFAULT_NAMESPACE.clone_into(&mut object.namespace);
    }
    Some(object)
}

/// The id of an operation whose caller gave an id of another form. Callers and accounts have ids of their own, so that
/// nobody takes or finds out those of others.
pub(super) fn derived_id(account_uid: &str, principal: &str, client_request_id: &str) -> String {
    let mut digest = Sha256::new().chain_update(b"kubesvc operation\0");
    for part in [account_uid, principal, client_request_id] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let digest = digest.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Ulid::from_bytes(bytes).to_string()
}

/// Whether the caller's list of accounts has this one. Without a list it has all.
pub(super) fn is_among(accounts: Option<&[String]>, account: &str) -> bool {
    accounts.is_none_or(|accounts| accounts.iter().any(|one| one == account))
}

#[cfg(test)]
mod tests {
    use kubesvc_core::operations::operation_from_text;

    use super::*;

    fn operation(verb: &str) -> Operation {
        operation_from_text(&format!("account {{ name: \"a\" }} {verb}")).expect(verb)
    }

    const TARGET: &str = "target { group: \"apps\" kind: \"Deployment\" namespace: \"n\" name: \"web\" }";
    const MANIFEST: &str = "{\\\"apiVersion\\\": \\\"v1\\\", \\\"kind\\\": \\\"ConfigMap\\\", \\\"metadata\\\": {\\\"name\\\": \\\"c\\\"}}";

    #[test]
    fn what_is_known_of_an_operation_is_small_whatever_its_manifest() {
        let data = "x".repeat(1 << 20);
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"large": data},
        });
        let deploy = operation(&format!("deploy {{ manifest {{ data: {:?} }} }}", object.to_string()));
        let identity = OperationIdentity::of(&deploy, "uid", false);
        assert!(format!("{identity:?}").len() < 1000, "its manifest is not in it");
        assert_eq!(identity, OperationIdentity::of(&deploy, "uid", false));
    }

    #[test]
    fn each_verb_needs_its_rights() {
        let verbs = |text: &str| required_verbs(operation(text).kind()).to_vec();
        assert_eq!(verbs(&format!("deploy {{ manifest {{ data: \"{MANIFEST}\" }} }}")), ["create", "patch"]);
        assert_eq!(verbs(&format!("delete {{ {TARGET} }}")), ["delete"]);
        assert_eq!(verbs(&format!("scale {{ {TARGET} replicas: 1 }}")), ["patch"]);
        assert_eq!(verbs(&format!("restart_rollout {{ {TARGET} }}")), ["patch"]);
        assert_eq!(verbs("discovery {}"), ["get"]);
        assert_eq!(verbs(&format!("revision_history {{ {TARGET} }}")), ["get"]);
    }

    #[test]
    fn a_delete_may_wait_beside_the_time_for_its_requests() {
        let seconds = |text: &str| {
            let (write, read) = (Duration::from_secs(30), Duration::from_secs(10));
            time_limit(&operation(text), write, read).as_secs()
        };
        assert_eq!(seconds(&format!("delete {{ {TARGET} }}")), 60);
        assert_eq!(seconds(&format!("delete {{ {TARGET} grace_s: 5 }}")), 35);
        assert_eq!(seconds(&format!("delete {{ {TARGET} grace_s: 0 }}")), 60);
        assert_eq!(seconds(&format!("delete {{ {TARGET} grace_s: 100000 }}")), 600);
        assert_eq!(seconds(&format!("scale {{ {TARGET} }}")), 30);
        assert_eq!(seconds("discovery {}"), 10);
        assert_eq!(seconds("deadline_ms: 1000 discovery {}"), 1);
    }

    #[test]
    fn an_id_is_derived_once_and_for_all() {
        let id = derived_id("u", "alice", "deploy-17");
        assert_eq!(id, derived_id("u", "alice", "deploy-17"));
        for (uid, principal, text) in [
            ("u", "alice", "deploy-18"),
            ("u", "bob", "deploy-17"),
            ("v", "alice", "deploy-17"),
            ("ua", "lice", "deploy-17"),
        ] {
            assert_ne!(id, derived_id(uid, principal, text), "{uid} {principal} {text}");
        }
        let text = format!("op_id: \"{id}\" account {{ name: \"a\" }} discovery {{}}");
        assert_eq!(operation_from_text(&text).expect("an id that is one").id(), id);
    }

    #[test]
    fn two_calls_are_the_same_by_account_and_content_however_that_is_written() {
        let of = |text: &str| OperationIdentity::of(&operation(text), "u", false);
        let deploy =
            |data: &str, mode: &str| of(&format!("deploy {{ manifest {{ data: \"{data}\" }} {mode} }}"));
        let yaml = "kind: ConfigMap\\napiVersion: v1\\nmetadata:\\n  name: c\\n";
        assert_eq!(deploy(MANIFEST, ""), deploy(yaml, ""));
        assert_ne!(deploy(MANIFEST, ""), deploy(&format!("{yaml}data: {{a: b}}\\n"), ""), "another manifest");
        assert_ne!(deploy(MANIFEST, ""), deploy(MANIFEST, "mode: REPLACE"));
        assert_ne!(deploy(MANIFEST, ""), deploy(&MANIFEST.replace("\\\"c\\\"", "\\\"d\\\""), ""));
        let web = of(&format!("scale {{ {TARGET} replicas: 1 }}"));
        assert_ne!(web, of(&format!("scale {{ {TARGET} replicas: 2 }}")));
        assert_ne!(web, of(&format!("restart_rollout {{ {TARGET} }}")));
        let scale = operation(&format!("deadline_ms: 5 scale {{ {TARGET} replicas: 1 }}"));
        assert_eq!(web, OperationIdentity::of(&scale, "u", false));
        assert_ne!(web, OperationIdentity::of(&scale, "u", true));
        assert_ne!(web, OperationIdentity::of(&scale, "v", false), "the account was made anew");
    }

    #[test]
    fn the_id_of_a_request_says_what_its_operation_does() {
        let digest = |text: &str| OperationIdentity::of(&operation(text), "u", false).digest();
        let web = digest(&format!("scale {{ {TARGET} replicas: 1 }}"));
        let (one, other) = (web.request_id(), web.request_id());
        assert_ne!(one, other);
        assert!(web.is_of(&one) && web.is_of(&other));
        let api = digest(&format!("scale {{ {} }}", TARGET.replace("web", "api")));
        assert!(!api.is_of(&one) && !web.is_of("") && !web.is_of(&api.request_id()));
    }

    #[test]
    fn a_list_of_accounts_only_narrows() {
        assert!(is_among(None, "a"));
        assert!(is_among(Some(&["b".to_owned(), "a".to_owned()]), "a"));
        assert!(!is_among(Some(&[]), "a"));
    }
}
