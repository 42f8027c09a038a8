//! The operator's settings for accounts that do not say themselves: `kubesvc.runtime`.

use std::collections::BTreeMap;

use kubesvc_core::cache::classes::KindClasses;
use kubesvc_core::cache::findings::Setting;
use kubesvc_core::spec::CustomResourceTreatment;

/// What holds for accounts that do not say themselves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AccountDefaults {
    /// For all accounts.
    pub all: RuntimeSettings,
    /// By name of the account.
    pub accounts: BTreeMap<String, RuntimeSettings>,
}

/// What holds for one account, or for all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeSettings {
    /// Whether only what Spinnaker deployed is cached.
    pub only_spinnaker_managed: Option<bool>,
    /// What Spinnaker takes custom kinds for.
    pub custom_resources: Vec<CustomResourceTreatment>,
}

impl AccountDefaults {
    /// Whether only what Spinnaker deployed is cached for the account of this name, unless it says otherwise.
    pub fn only_spinnaker_managed(&self, account: &str) -> bool {
        let of_account = self.accounts.get(account).and_then(|settings| settings.only_spinnaker_managed);
        of_account.or(self.all.only_spinnaker_managed).unwrap_or_default()
    }

    /// The classes of kinds for the account of this name, whose spec has these custom resources. Findings are left out:
    /// those of the settings are errors of the configuration, those of the spec are told in the account's condition.
    pub fn classes(&self, account: &str, own: &[CustomResourceTreatment]) -> KindClasses {
        let of_account = self.accounts.get(account).map(|settings| settings.custom_resources.as_slice());
        let lists = [
            (Setting::RuntimeCustomResources, self.all.custom_resources.as_slice()),
            (Setting::RuntimeCustomResources, of_account.unwrap_or_default()),
            (Setting::CustomResources, own),
        ];
        KindClasses::read(&lists).0
    }
}
