//! The messages between operator and agent, generated from `proto/`, and the protocol limits that both sides obey.

use std::fmt;

/// Protocol version of this program.
pub const PROTOCOL_VERSION: u32 = 1;
/// Maximum size of a gRPC message in either direction, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of the held accounts listed in a hello, in bytes. The hub sends an Add for accounts beyond it, and
/// the agent answers from memory.
pub const MAX_HELD_BYTES: usize = 3 * 1024 * 1024;
/// Bytes reserved for the rest of a message beside its accounts, with headroom.
pub const MESSAGE_HEAD_BYTES: usize = 64 * 1024;
/// Smallest message limit that a hub may configure, in bytes. Below it, an agent that holds many accounts could not
/// send its hello.
pub const MIN_MESSAGE_BYTES: usize = MAX_HELD_BYTES + MESSAGE_HEAD_BYTES;
/// Maximum number of accounts in one `AddAccounts` or `DeleteAccounts`.
pub const MAX_ACCOUNTS_IN_BATCH: usize = 50;
/// Maximum size of the accounts in one `AddAccounts`, in bytes.
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// Capability of a hub that hears, and an agent that says, that a cluster refuses the credential of a held account.
pub const REFUSALS_CAPABILITY: &str = "refusals/1";
/// Capability of a hub that takes, and an agent that sends, a new token for a session that goes on.
pub const REAUTH_CAPABILITY: &str = "reauth/1";
/// Maximum size of an agent's bearer token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Maximum number of events of one stream of cached objects that are not committed. The hub takes no more: the account
/// begins anew then, so the agent sends no more.
pub const MAX_UNCOMMITTED_EVENTS: usize = 16 * 1024;

/// Package `common` of `proto/`.
pub mod common {
    #![expect(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/messages/common.rs"));
}
/// Package `ops` of `proto/`.
pub mod ops {
    #![expect(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/messages/ops.rs"));
}
/// Package `events` of `proto/`.
pub mod events {
    #![expect(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/messages/events.rs"));
}
/// Package `operations` of `proto/`. Its messages are read from what callers write and never travel to an agent.
pub mod operations {
    #![expect(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/messages/operations.rs"));

    #[cfg(feature = "operations")]
    /// The descriptors of the package, by which its text form is read.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/messages/operations.bin"));
}

impl fmt::Debug for ops::AccountSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountSpec")
            .field("account", &self.account)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ops::Reauthenticate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reauthenticate (redacted)")
    }
}

impl fmt::Debug for ops::Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("account", &self.account)
            .field("request_id", &self.request_id)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ops::Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for ops::Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data").field("len", &self.bytes.len()).finish()
    }
}

impl fmt::Debug for ops::account_spec::Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(_) => f.write_str("kubeconfig (redacted)"),
            Self::File(path) => write!(f, "file {path}"),
            Self::ServiceAccount(_) => f.write_str("service account"),
        }
    }
}

impl fmt::Debug for operations::Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "manifest of {} bytes (redacted)", self.data.len())
    }
}
