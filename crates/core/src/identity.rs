//! Who an agent is, by the credential that it shows.
//!
//! | module | owns |
//! |---|---|
//! | `subject` | the subject of a certificate as text |
//! | `subject_filters` | which subjects are let in (`kubesvc.grpc.auth.x509`) |

mod subject;
mod subject_filters;

pub use subject::{MAX_SUBJECT_BYTES, Subject, SubjectError};
pub use subject_filters::{SubjectFilterError, SubjectFilters, SubjectMatch};
