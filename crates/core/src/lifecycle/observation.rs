//! What the leader has observed about one account. Every fact is absent, unknown or known.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::credential_expiry::CredentialExpiry;
use crate::failure::Failure;
use crate::ids::{AgentId, AgentKey, ZoneId};
use crate::registration::ClouddriverFacts;
use crate::{BootId, CachingEpoch, GrantEpoch, Installation, KubesvcAccount, ListingAgent, NameHolder};

/// A second of the leader, counted from its start, and only while it leads.
pub type Tick = u64;

/// The settings that the lifecycle obeys; times in ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct LifecyclePolicy {
    /// Tries after the first one; then the account stalls.
    pub max_retries: u32,
    /// Until the first retry.
    pub retry_first: Tick,
    /// From one retry to the next; 1 keeps the pace.
    pub retry_multiplier: f64,
    /// The longest wait between two tries.
    pub retry_max: Tick,
    /// How long an agent may be away before it counts as gone.
    pub orphan_grace: Tick,
    /// How long an agent may be silent about a command.
    pub operation_wait: Tick,
    /// How long a zone that was found by asking, or one with static accounts, may be without agents.
    pub account_cleanup: Tick,
    /// Whether the cached objects of an account go too where it goes because no agent is left that has it in its file.
    pub clean_unused_accounts: bool,
    /// Whether a zone may offer to take an account that names none.
    pub offers: bool,
    /// Whether an account of an agent's own file has its name before a declared one.
    pub agent_wins: bool,
    /// The installation that serves the accounts; absent: it is not written down.
    pub installation: Option<Installation>,
}

/// Something that may not have been looked at yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fact<T> {
    /// Nobody has looked, or the look is not over.
    #[default]
    Unknown,
    /// It was looked at.
    Known(T),
}

/// The account's credential, after it was read and vetted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFact {
    /// The Secret's uid and resourceVersion, joined by a slash; absent where there is no Secret.
    pub version: Option<String>,
    /// Other versions under which this process has read the same content: a Secret's labels may change.
    pub same_as: Vec<String>,
    /// When it expires; absent where nothing says so.
    pub expiry: Option<CredentialExpiry>,
}

impl CredentialFact {
    /// A credential of this version, of which no other one is known to have the same content.
    pub fn new(version: Option<String>) -> Self {
        Self { version, same_as: Vec::new(), expiry: None }
    }

    /// Whether it is the credential that is written down under this version.
    pub fn is(&self, version: Option<&str>) -> bool {
        self.version.as_deref() == version
            || version.is_some_and(|version| self.same_as.iter().any(|one| one == version))
    }
}

/// The account's row in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFact {
    /// There is none.
    Absent,
    /// It is there.
    Present,
    /// There is one of this name that is not ours (its uid is NULL): somebody else wrote it.
    Foreign,
    /// The database cannot be asked: the status goes on, no finalizer is removed.
    Unavailable,
}

/// Whether an agent's session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It stands.
    Connected,
    /// It ended at this tick, or was never seen by this leader though an earlier one had it.
    Away(Tick),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionEnding {
    /// The agent said goodbye: its process has ended.
    Goodbye,
    /// It was cut, while its replica lives.
    Cut,
    /// Its replica has ended, or is ending; or it is not known how.
    #[default]
    ReplicaLost,
}

/// What is known of the process behind a session, beside what it says of the account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentProcess {
    /// The ULID of the process; empty where it is not known.
    pub boot_id: BootId,
    /// Since when its session stands, where it does.
    pub since: Tick,
    /// How its session ended, where it has.
    pub ending: SessionEnding,
    /// Another replica has it, which tells only what the account's status waits for.
    pub remote: bool,
    /// The objects of how many accounts its agent streams, or is about to.
    pub load: usize,
    /// Whether it streams objects at all; absent where its replica does not tell.
    pub streams_objects: Option<bool>,
}

/// What a session says of the objects that it streams of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachingReport {
    /// The election under which it streams them; that of another one does not count.
    pub epoch: CachingEpoch,
    /// What it leaves out, and why, as in [`summary`](crate::cache::issues::summary).
    pub left_out: Option<String>,
    /// It has not been able to read anything of the cluster for 60 s.
    pub is_unreadable: bool,
}

/// The cluster that an agent reached.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterIdentity {
    /// UID of the kube-system namespace; empty if the agent may not read it.
    pub cluster_uid: String,
    /// SHA-256 of the keys that verify service account tokens; empty if the agent may not read them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token_keys_digest: String,
    /// SHA-256 of the public key of the pinned certificate authority that verified the server; empty if none did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authority_key_digest: String,
    /// URL of the API server.
    pub host: String,
    /// SHA-256 of the served certificate.
    pub cert_fingerprint: String,
    /// Version of the API server.
    pub version: String,
    /// Number of namespaces that the agent saw.
    pub namespaces_count: u32,
    /// Why the cluster has come to refuse the credential; the agent holds the account all the same. Absent while the
    /// cluster accepts it. An outbox has it beside the identity.
    #[serde(skip)]
    pub refused: Option<Failure>,
}

/// The last answer of a session about the account's uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentReport {
    /// It holds the account.
    Held(ClusterIdentity),
    /// It could not take it, or could not drop it.
    Failed(Failure),
    /// It holds it no longer.
    Dropped,
    /// It held it and cannot any more.
    Lost(Failure),
}

/// What a session answered when it was asked whether it could reach the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It can.
    Yes,
    /// It cannot.
    No(Failure),
}

/// A message with the account that an agent has not answered, over all streams of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnansweredMessage {
    /// Size of the largest message that was sent, in bytes.
    pub bytes: usize,
    /// Number of streams on which it was sent and that ended without an answer.
    pub ended_streams: u32,
}

/// One session of an agent, as far as it concerns the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFact {
    /// The agent.
    pub agent_id: AgentId,
    /// Its zone.
    pub zone: ZoneId,
    /// Whether it is approved; one that is not is given nothing, and may hold what it was given before.
    pub approved: bool,
    /// Whether the session stands.
    pub presence: Presence,
    /// The process behind it.
    pub process: AgentProcess,
    /// Its last report, with the epoch that it is for.
    pub report: Option<(GrantEpoch, AgentReport)>,
    /// For how many ticks it has owed an answer; absent: it owes none.
    pub silent_for: Option<Tick>,
    /// The message that it owes an answer to; absent where its replica does not tell.
    pub unanswered: Option<UnansweredMessage>,
    /// Its answer to the last probe, with the generation of the spec that was probed.
    pub offer: Option<(i64, Offer)>,
    /// Whether the agent's own file has the account, by its name and with its source; unknown until the agent has sent
    /// the whole of it. Of an agent that is away, what its last list said.
    pub lists: Fact<bool>,
    /// uid of kube-system of the cluster that the agent runs in; empty where it has not said.
    pub cluster_uid: String,
    /// What it says of the objects that it streams; absent: nothing since it was elected, or nothing that is new.
    pub caching: Option<CachingReport>,
}

impl SessionFact {
    /// The agent among all agents.
    pub fn agent(&self) -> AgentKey {
        AgentKey::new(&self.agent_id, &self.zone)
    }
}

/// Another object that has the account name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The object.
    pub object: NameHolder,
    /// It is the account of an agent's own file.
    pub is_static: bool,
}

impl Rival {
    /// The object of an account.
    pub fn of(account: &KubesvcAccount) -> Self {
        Self { object: NameHolder::of(account), is_static: account.is_static() }
    }
}

/// Everything the decision is made from.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// The object as last read or written.
    pub account: &'a KubesvcAccount,
    /// Now.
    pub now: Tick,
    /// Wall time, to be stamped into what is written; nothing is decided by it but how soon a credential expires.
    pub wall: Timestamp,
    /// When this leader began.
    pub leading_since: Tick,
    /// The settings.
    pub policy: &'a LifecyclePolicy,
    /// Since when this leader has seen the account in its state, epoch and failed count; a status write of its own
    /// begins it anew. Retries are counted from here.
    pub in_state_since: Tick,
    /// The credential, as read since the last status write of this leader: each write makes it Unknown again, so that
    /// the next try reads it anew.
    pub credential: Fact<Result<CredentialFact, Failure>>,
    /// The credential has been awaited for so long that people are told.
    pub credential_slow: bool,
    /// The credential was judged otherwise than the last time, and no status was written since.
    pub credential_changed: bool,
    /// When the credential that was last read expires. Unknown if none was, or if it could not be read.
    pub credential_expiry: Fact<Option<CredentialExpiry>>,
    /// The row.
    pub row: RowFact,
    /// All sessions, each with its report about this uid.
    pub sessions: &'a [SessionFact],
    /// The sessions of the grant's zone were read from the API server itself since the status was written, or all of
    /// them are this process's own. What a watch shows may be old, and a revoke ends for good; nor is a zone said to be
    /// deserted by what may be old.
    pub sessions_are_read: bool,
    /// Since when replicas that are alive have had agents waiting to be registered; absent: none waits. Meanwhile nobody
    /// is taken for gone, for ten minutes at most.
    pub backlog_since: Option<Tick>,
    /// Another object with the same account name, which [takes precedence](crate::precedence).
    pub rival: Option<&'a Rival>,
    /// An agent whose own file lists an account of this name, beside this object; the one that the status names, if it
    /// still does. Always known to be none for an account of an agent's own file.
    pub listed_by: Fact<Option<&'a ListingAgent>>,
    /// A zone still has the grant of another object with the same account name, over which this one takes precedence.
    pub name_is_held: bool,
    /// The tick at which this leader last wrote what is left out of the account's objects; absent: it has not.
    pub left_out_written: Option<Tick>,
    /// The earliest tick at which an elected agent that cannot read the cluster is replaced: if none of several can, they
    /// take turns at growing intervals.
    pub unreadable_replaced_from: Tick,
    /// What is said of a migrated account whose spec names a Secret for a file that only Clouddriver had; absent: it does
    /// not. Whether the Secret exists by now, the credential says.
    pub clouddriver_file: Option<String>,
    /// The account's registration in Clouddriver; absent: accounts are not registered there.
    pub registration: Option<ClouddriverFacts>,
}
