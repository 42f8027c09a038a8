//! Accounts registered in a stock Clouddriver: which ones, with which definition, and what to do next for each name.
//!
//! ```text
//!            two reads lack the name              200                  it is to go             gone
//!  (no row) ─────────────────────────▶ ADDING ─────────▶ ADDED ──────────────────▶ REMOVING ─────▶ (no row)
//!                                        ▲  POST, then PUT  │ its definition changed
//!                                        └──────────────────┘
//! ```
//!
//! The state of a name is its row in `kubesvc_pushed`, committed before each call. Whose a row in Clouddriver is says
//! the [`Mark`] in it, whatever kubesvc's table says: a row with another mark, or with none, is never touched.
//!
//! [`next_step`] decides from a [`NameSituation`], and [`condition`] says what is so. What a leader keeps of a name in memory
//! is its [`Attempts`]; they may be lost at any time.

mod condition;
mod definition;
mod eligibility;
mod listing;
mod steps;
#[cfg(test)]
mod tests;

pub use condition::{ClouddriverSituation, also_condition, condition};
pub use definition::{BODY_VERSION, Mark, RegisteredDefinition, RegistrationSettings, differs_from_sent};
pub use eligibility::{Eligibility, eligibility, folded_name};
pub use listing::LoadedNames;
pub use steps::{
    AccountCall, Attempts, CallFailure, FailureKind, NameSituation, RegisteredRow, RegistrationStep,
    RegistrationTimes, RowState, Shown, Wanted, next_step,
};

pub use kubesvc_core::lifecycle::Tick;
