//! Why a hub does not take the agent, in words that say what to do: as a Refused frame, or as a status of gRPC.

use std::time::Duration;

use tonic::{Code, Status};

use super::MAX_RETRY_AFTER;
use super::transport::HubChannel;
use crate::hub_token::shown;
use kubesvc_core::wire::ops::Refused;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_runtime::telemetry::errors::chain;

/// What shows at the operator which agents it knows.
const AT_THE_OPERATOR: &str = "`kubectl kubesvc agents` at the operator shows it";

/// A refusal of the agent. The accounts that it holds are those of a lost stream.
#[derive(Debug)]
pub(super) struct HubRefusal {
    pub(super) problem: String,
    /// When to try again; zero: at the agent's own pace.
    pub(super) retry_after: Duration,
    /// Whether another attempt is of no use until something is changed.
    pub(super) permanent: bool,
    /// Whether the hub does not accept the agent's credential.
    pub(super) of_credential: bool,
}

impl HubRefusal {
    /// The answer of a hub to the hello of an agent of this zone.
    pub(super) fn of_frame(refused: &Refused, zone: &str, hub: &HubChannel) -> Self {
        let reason = refused.reason();
        let remedy = match reason {
            Reason::ZoneForbidden => format!(
                " (the operator does not allow this agent the zone {zone:?}: set another zoneId, or allow the zone in the \
                 agent's identity; {AT_THE_OPERATOR})"
            ),
            Reason::Unauthenticated => format!(" ({})", unauthenticated(hub)),
            _ => String::new(),
        };
        let (reason, message) = (reason.as_str_name(), hub.service.shown(&refused.message));
        let retry_after = Duration::from_millis(refused.retry_after_ms.into()).min(MAX_RETRY_AFTER);
        let problem = format!("the hub refuses the agent: {reason}: {message}{remedy}");
        let of_credential = refused.reason() == Reason::Unauthenticated;
        Self { problem, retry_after, permanent: refused.permanent, of_credential }
    }

    /// The end of a stream with this status, if that is a refusal.
    pub(super) fn of_status(status: &Status, hub: &HubChannel) -> Option<Self> {
        let remedy = match status.code() {
            Code::Unauthenticated => unauthenticated(hub),
            Code::PermissionDenied => format!(
                "the operator has no identity for this agent, or the agent is revoked or suspended there: {AT_THE_OPERATOR}"
            ),
            _ => return None,
        };
        let problem =
            format!("the hub refuses the agent: {:?}: {} ({remedy})", status.code(), said(status, hub));
        let of_credential = status.code() == Code::Unauthenticated;
        Some(Self { problem, retry_after: Duration::ZERO, permanent: false, of_credential })
    }
}

/// What to do about a hub that takes no credential of the agent, or not this one.
fn unauthenticated(hub: &HubChannel) -> String {
    const CERTIFICATE: &str = "clouddriver.tls.clientCertFile";
    match (hub.service.token(), hub.shows_certificate()) {
        (Some(token), shows_certificate) => {
            let setting = token.setting();
            let certificate = match shows_certificate {
                true => format!(", or its certificate ({CERTIFICATE})"),
                false => String::new(),
            };
            format!(
                "the hub, or a proxy before it, does not accept the agent's token ({setting}){certificate}: have another one \
                 issued, for the audience and by an issuer that the operator accepts"
            )
        }
        (None, true) => format!(
            "the hub, or a proxy before it, does not accept the agent's certificate ({CERTIFICATE}), or wants a token: set \
             clouddriver.auth.tokenFile, or another one of clouddriver.auth"
        ),
        (None, false) => format!(
            "the hub, or a proxy before it, wants a credential of the agent: set clouddriver.auth.tokenFile, or another one \
             of clouddriver.auth, or {CERTIFICATE}"
        ),
    }
}

/// What a status says.
pub(super) fn said(status: &Status, hub: &HubChannel) -> String {
    if status.message().is_empty() { shown(&chain(status)) } else { hub.service.shown(status.message()) }
}
