//! The settings of the programs as the kubectl plugin knows them, for `import`.

#[cfg(test)]
mod tests;

use std::path::Path;

use super::settings::{self, OperatorSettings};
use kubesvc_agent::settings::{AccountSettings, inspect};
use kubesvc_core::secret_reference::is_reference;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_plugin::{AgentFiles, ProgramSettings, StaticAccount};
use kubesvc_runtime::config::{ConfigError, ConfigProblem, Settings as _, UnknownKeys};

/// Stands for the operator's own database, which is not among the plugin's settings.
const OWN_DATABASE: &str = "mysql://kubesvc@database.invalid/kubesvc";

/// The settings of both programs.
pub fn program_settings() -> ProgramSettings {
    ProgramSettings { operator: OperatorSettings::spec, check_operator, agent }
}

fn check_operator(file: &Path) -> Result<(), ConfigError> {
    let environment = |name: &str| (name == "KUBESVC_DATABASE_URL").then(|| OWN_DATABASE.to_owned());
    settings::load(&[file.to_owned()], &environment, UnknownKeys::Error).map(drop)
}

fn agent(folder: &Path) -> AgentFiles {
    let inspected = inspect(folder);
    let account = |account: &AccountSettings| StaticAccount {
        name: account.name().to_owned(),
        credential: kind_of(account.spec.credential.as_ref()),
    };
    let settings = inspected.settings.as_ref();
    AgentFiles {
        zone_id: settings.and_then(|settings| settings.zone_id.clone()),
        accounts: settings.map(|settings| settings.accounts.iter().map(account).collect()),
        refused: inspected.problems.iter().map(ConfigProblem::without_value).collect(),
        ignored: inspected.warnings,
    }
}

fn kind_of(credential: Option<&Credential>) -> String {
    match credential {
        Some(Credential::File(path)) if is_reference(path) => {
            "a reference to an engine that agents do not have: mount a kubeconfig".to_owned()
        }
        Some(Credential::File(_)) => "kubeconfig file".to_owned(),
        Some(Credential::ServiceAccount(_)) => "service account".to_owned(),
        _ => String::new(),
    }
}
