//! Which accounts are registered in Clouddriver.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use kubesvc_core::{DesiredState, KubesvcAccount, State};

/// Characters of names with which Clouddriver's `DELETE /credentials/NAME` cannot be called.
const UNDELETABLE: [char; 4] = ['/', '\\', ';', '%'];

/// What shall become of an account in Clouddriver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// It is registered.
    Registered,
    /// It stays as it is: an account that has failed or lost its agents stays registered, and one that was never ACTIVE
    /// is not registered yet.
    Kept,
    /// It is not there.
    Excluded,
    /// It cannot be there, for this reason.
    NotPortable(String),
}

/// What shall become of an account in Clouddriver. `older` is the name of an older account that Clouddriver's database
/// may take for the same.
pub fn eligibility(account: &KubesvcAccount, older: Option<&str>) -> Eligibility {
    let name = account.account_name();
    let registers = account.spec.spinnaker.as_ref().and_then(|one| one.register).unwrap_or(true);
    if account.is_being_deleted() || account.desired() == DesiredState::Inactive || !registers {
        return Eligibility::Excluded;
    }
    if let Some(character) = name.chars().find(|one| UNDELETABLE.contains(one) || one.is_control()) {
        return Eligibility::NotPortable(format!(
            "Clouddriver cannot remove an account whose name has the character {character:?}: give the account another \
             spec.accountName"
        ));
    }
    if matches!(name, "." | "..") {
        let why = format!("{name:?} cannot be part of a URL: give the account another spec.accountName");
        return Eligibility::NotPortable(why);
    }
    if let Some(older) = older {
        return Eligibility::NotPortable(format!(
            "the older account {older:?} has a name that differs only in case or accents, which is the same row in \
             Clouddriver on MySQL: give this account another spec.accountName"
        ));
    }
    match account.status_or_default().state() {
        State::Active => Eligibility::Registered,
        _ => Eligibility::Kept,
    }
}

/// The name without case and accents. Names that are equal in this form may be one row in Clouddriver.
pub fn folded_name(name: &str) -> String {
    name.nfkd().filter(|one| !is_combining_mark(*one)).flat_map(char::to_lowercase).collect()
}
