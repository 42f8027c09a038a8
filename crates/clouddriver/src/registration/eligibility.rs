//! Which accounts are registered in Clouddriver.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use kubesvc_core::registration::RegistrationReason;
use kubesvc_core::{DesiredState, KubesvcAccount, State};

/// Characters of names with which Clouddriver's `DELETE /credentials/NAME` cannot be called.
const UNDELETABLE: [char; 4] = ['/', '\\', ';', '%'];

/// Beginnings of texts that Clouddriver resolves when it loads an account.
const SECRET_PREFIXES: [&str; 4] = ["encrypted:", "encryptedFile:", "secret:", "secretFile:"];

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
    /// It cannot be there.
    Unfit {
        /// The reason.
        reason: RegistrationReason,
        /// What is wrong, and what to do.
        why: String,
    },
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
        return not_portable(format!(
            "Clouddriver cannot remove an account whose name has the character {character:?}: give the account another \
             spec.accountName"
        ));
    }
    if matches!(name, "." | "..") {
        let why = format!("{name:?} cannot be part of a URL: give the account another spec.accountName");
        return not_portable(why);
    }
    if let Some(older) = older {
        return not_portable(format!(
            "the older account {older:?} has a name that differs only in case or accents, which is the same row in \
             Clouddriver on MySQL: give this account another spec.accountName"
        ));
    }
    let texts = [
        ("spec.accountName", Some(name)),
        ("spec.environment", account.spec.environment.as_deref()),
        ("spec.accountType", account.spec.account_type.as_deref()),
    ];
    if let Some((field, _)) = texts.iter().find(|(_, text)| text.is_some_and(may_be_resolved)) {
        let why = format!(
            "{field} is a secret reference, which Clouddriver would resolve with its own rights and show: give it a plain text"
        );
        return Eligibility::Unfit { reason: RegistrationReason::Rejected, why };
    }
    match account.status_or_default().state() {
        State::Active => Eligibility::Registered,
        _ => Eligibility::Kept,
    }
}

fn not_portable(why: String) -> Eligibility {
    Eligibility::Unfit { reason: RegistrationReason::NameNotPortable, why }
}

/// Whether Clouddriver may take a text for a reference to a secret.
fn may_be_resolved(text: &str) -> bool {
    let text = text.trim_start();
    SECRET_PREFIXES
        .iter()
        .any(|prefix| text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
}

/// The name without case and accents. Names that are equal in this form may be one row in Clouddriver.
pub fn folded_name(name: &str) -> String {
    name.nfkd().filter(|one| !is_combining_mark(*one)).flat_map(char::to_lowercase).collect()
}
