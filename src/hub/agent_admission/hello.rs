//! Validation of an agent's first frame.

use std::time::Duration;

use crate::hub::sessions::ledger::HeldClaim;
use crate::hub::sessions::session::AgentIdentity;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::{PROTOCOL_VERSION, REAUTH_CAPABILITY, REFUSALS_CAPABILITY, ops};
use kubesvc_core::{CachingEpoch, GrantEpoch, object_names};

/// Maximum length of an agent id, in characters: the size of `agent_id` in each database.
const MAX_AGENT_ID_CHARS: usize = 191;
/// Maximum length of a zone, in characters.
const MAX_ZONE_CHARS: usize = 255;
/// Maximum length of a version, in characters.
const MAX_VERSION_CHARS: usize = 128;
/// Maximum length of a cluster uid, in characters.
const MAX_CLUSTER_UID_CHARS: usize = 128;
/// Maximum number of accounts in a hello.
pub(crate) const MAX_HELD_ACCOUNTS: usize = 100_000;
/// Maximum length of an account name, in characters.
const MAX_NAME_CHARS: usize = 255;
/// Maximum length of an account uid, in characters.
const MAX_UID_CHARS: usize = 64;

/// The capability to stream objects.
pub(crate) const CACHING_CAPABILITY: &str = "caching/1";
/// The capability to read and write zstd.
pub(crate) const ZSTD_CAPABILITY: &str = "zstd/1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedHello {
    /// The agent; its address is not known here.
    pub(crate) agent: AgentIdentity,
    /// The accounts that the agent holds.
    pub(crate) held: Vec<HeldClaim>,
    /// Uid and epoch of the accounts whose objects it streams.
    pub(crate) cached: Vec<(String, CachingEpoch)>,
    /// Whether it claims more than was accepted.
    pub(crate) has_unheard: bool,
    /// Maximum size of a message to the agent, in bytes.
    pub(crate) max_message_bytes: usize,
}

impl AcceptedHello {
    /// Whether it claims to hold any account.
    pub(crate) fn claims(&self) -> bool {
        !self.held.is_empty() || !self.cached.is_empty()
    }

    /// Drops the claims of an agent that was never approved, which also frees their memory while it waits.
    pub(crate) fn ignore_claims(&mut self) {
        self.has_unheard |= self.claims();
        self.held = Vec::new();
        self.cached = Vec::new();
    }
}

/// Refusal of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HelloRefusal {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    /// `None`: a retry is useless until something is changed.
    retry_after: Option<Duration>,
}

impl HelloRefusal {
    pub(crate) fn permanent(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_after: None }
    }

    pub(super) fn for_now(reason: Reason, message: impl Into<String>, retry_after: Duration) -> Self {
        Self { reason, message: message.into(), retry_after: Some(retry_after) }
    }

    pub(super) fn into_frame(self) -> ops::Refused {
        ops::Refused {
            reason: self.reason.into(),
            message: self.message,
            retry_after_ms: self.retry_after.map(millis).unwrap_or_default(),
            permanent: self.retry_after.is_none(),
        }
    }
}

/// Converts to milliseconds for the wire, saturating.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

pub(crate) fn check(hello: ops::Hello, max_message_bytes: usize) -> Result<AcceptedHello, HelloRefusal> {
    for (field, value, max) in
        [("agent_id", &hello.agent_id, MAX_AGENT_ID_CHARS), ("zone_id", &hello.zone_id, MAX_ZONE_CHARS)]
    {
        text(field, value, max)?;
        object_names::check_agent_name(value)
            .map_err(|problem| malformed(&format!("{field} {problem}; remove it")))?;
    }
    if !hello.version.is_empty() {
        text("version", &hello.version, MAX_VERSION_CHARS)?;
    }
    if !hello.cluster_uid.is_empty() {
        text("cluster_uid", &hello.cluster_uid, MAX_CLUSTER_UID_CHARS)?;
    }
    if ulid::Ulid::from_string(&hello.boot_id).is_err() {
        return Err(malformed("boot_id must be a ULID"));
    }
    let connect_seq = i64::try_from(hello.connect_seq).ok().filter(|seq| *seq > 0);
    let connect_seq = connect_seq.ok_or_else(|| malformed("connect_seq must count from 1"))?;
    protocol(hello.protocol_min, hello.protocol_max)?;
    if hello.accounts_held.len() > MAX_HELD_ACCOUNTS {
        let count = hello.accounts_held.len();
        return Err(malformed(&format!(
            "accounts_held names {count} accounts; at most {MAX_HELD_ACCOUNTS} may be"
        )));
    }
    let cached = hello.accounts_held.iter().filter_map(cached).collect::<Result<_, _>>()?;
    let held = hello.accounts_held.into_iter().map(held).collect::<Result<_, _>>()?;
    let has = |name: &str| hello.capabilities.iter().any(|capability| capability == name);
    let told = usize::try_from(hello.max_message_bytes).unwrap_or(usize::MAX);
    Ok(AcceptedHello {
        agent: AgentIdentity {
            id: hello.agent_id.into(),
            zone: hello.zone_id.into(),
            boot_id: hello.boot_id.into(),
            connect_seq,
            version: hello.version,
            cluster_uid: hello.cluster_uid,
            takes_zstd: has(ZSTD_CAPABILITY),
            streams_objects: has(CACHING_CAPABILITY),
            takes_requests: has(kubesvc_core::requests::CAPABILITY),
            tells_refusals: has(REFUSALS_CAPABILITY),
            renews_tokens: has(REAUTH_CAPABILITY),
            peer: None,
        },
        held,
        cached,
        has_unheard: false,
        max_message_bytes: if told == 0 { max_message_bytes } else { told.min(max_message_bytes) },
    })
}

fn protocol(min: u32, max: u32) -> Result<(), HelloRefusal> {
    if min > max {
        return Err(malformed("protocol_min is greater than protocol_max"));
    }
    if max < PROTOCOL_VERSION {
        let message = format!(
            "the agent speaks protocol {min} to {max}, this operator {PROTOCOL_VERSION}: upgrade the agent"
        );
        return Err(HelloRefusal::permanent(Reason::ProtocolTooOld, message));
    }
    if min > PROTOCOL_VERSION {
        let message = format!(
            "the agent speaks protocol {min} to {max}, this operator {PROTOCOL_VERSION}: upgrade the operator"
        );
        return Err(HelloRefusal::permanent(Reason::ProtocolTooNew, message));
    }
    Ok(())
}

fn held(account: ops::HeldAccount) -> Result<HeldClaim, HelloRefusal> {
    let cluster_uid = account.cluster_uid;
    let account = account.account.ok_or_else(|| malformed("accounts_held has an entry without account"))?;
    text("accounts_held.account.uid", &account.uid, MAX_UID_CHARS)?;
    text("accounts_held.account.name", &account.name, MAX_NAME_CHARS)?;
    let epoch = GrantEpoch::from_wire(account.epoch);
    let epoch =
        epoch.ok_or_else(|| malformed("accounts_held.account.epoch is beyond what an epoch can be"))?;
    if !cluster_uid.is_empty() {
        text("accounts_held.cluster_uid", &cluster_uid, MAX_CLUSTER_UID_CHARS)?;
    }
    Ok(HeldClaim { uid: account.uid, name: account.name, epoch, cluster_uid })
}

/// Converts the caching epoch of a held account, if it has one.
fn cached(account: &ops::HeldAccount) -> Option<Result<(String, CachingEpoch), HelloRefusal>> {
    let uid = &account.account.as_ref()?.uid;
    match CachingEpoch::from_wire(account.caching_epoch) {
        Some(CachingEpoch::NONE) => None,
        Some(epoch) => Some(Ok((uid.clone(), epoch))),
        None => Some(Err(malformed("accounts_held.caching_epoch is beyond what an epoch can be"))),
    }
}

fn text(field: &str, value: &str, max: usize) -> Result<(), HelloRefusal> {
    if value.is_empty() {
        return Err(malformed(&format!("{field} is empty; set it in the agent's settings")));
    }
    if value.chars().count() > max {
        return Err(malformed(&format!("{field} is longer than {max} characters; shorten it")));
    }
    if value.chars().any(char::is_control) {
        return Err(malformed(&format!("{field} has control characters; remove them")));
    }
    if value.trim() != value {
        return Err(malformed(&format!("{field} begins or ends with white space; remove it")));
    }
    Ok(())
}

fn malformed(what: &str) -> HelloRefusal {
    HelloRefusal::permanent(Reason::Malformed, format!("hello refused: {what}"))
}
