//! Who an agent is, by the credential that it shows.
//!
//! | module | owns |
//! |---|---|
//! | `subject` | the subject of a certificate as text |
//! | `subject_filters` | which subjects are let in (`kubesvc.grpc.auth.x509`) |
//! | `resource` | the `KubesvcIdentity` object |
//! | `credential` | the facts of a certificate and a token that were verified |
//! | `template` | texts with placeholders, in credentials and in what they may claim |
//! | `decision` | the rights that a credential has by the objects |

mod credential;
mod decision;
mod resource;
mod subject;
mod subject_filters;
mod template;
#[cfg(test)]
mod tests;

pub use credential::{AgentCredential, CertificateFacts, TokenFacts, TokenHolder};
pub use decision::{AgentRights, ClaimRefusal, Identities, IdentityRefusal, UnusableIdentity};
pub use resource::{
    Allowance, CredentialMatch, JwtMatch, KubesvcIdentity, KubesvcIdentitySpec, KubesvcIdentityStatus,
    Revocations, ServiceAccountMatch, TokenSecret,
};
pub use subject::{MAX_SUBJECT_BYTES, Subject, SubjectError};
pub use subject_filters::{SubjectFilterError, SubjectFilters, SubjectMatch};
