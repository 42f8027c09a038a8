//! The messages between operator and agent, as generated from `proto/`, and what both sides hold them to.

use std::fmt;

/// The version of the protocol that this program speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// The largest gRPC message, in bytes, in both directions.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// How many bytes of held accounts a hello names. What it does not name is asked for again and answered from memory.
pub const MAX_HELD_BYTES: usize = 3 * 1024 * 1024;
/// What a message takes beside the accounts in it, in bytes, with room.
pub const MESSAGE_HEAD_BYTES: usize = 64 * 1024;
/// The smallest bound on messages that a hub may have: below it, an agent that holds many accounts could not say hello.
pub const MIN_MESSAGE_BYTES: usize = MAX_HELD_BYTES + MESSAGE_HEAD_BYTES;
/// How many accounts one `AddAccounts` or `DeleteAccounts` holds at most.
pub const MAX_ACCOUNTS_IN_BATCH: usize = 50;
/// How many bytes of accounts one `AddAccounts` holds at most.
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// The descriptors of all services, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// `common`
pub mod common {
    #![expect(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/common.rs"));
}
/// `ops`
pub mod ops {
    #![expect(missing_docs, unused_qualifications, clippy::allow_attributes, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/ops.rs"));
}
/// `events`
pub mod events {
    #![expect(missing_docs, unused_qualifications, clippy::allow_attributes, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/events.rs"));
}

impl fmt::Debug for ops::AccountSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountSpec")
            .field("account", &self.account)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
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
