//! The identity of an agent: its id and its zone.

use crate::account::names;

/// Returns the agent's id: `AGENT_ID`, otherwise `POD_NAME`, otherwise host name and process id.
///
/// # Errors
/// The id contains a character that no hub accepts.
pub(super) fn agent_id(env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let host = || format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id());
    let named = ["AGENT_ID", "POD_NAME"].into_iter().find_map(|name| Some((name, set(env, name)?)));
    let (source, id) = named.unwrap_or_else(|| ("the host's name", host()));
    checked(&format!("the agent's id ({source})"), id)
}

fn checked(what: &str, name: String) -> Result<String, String> {
    match names::check_agent_name(&name) {
        Ok(()) => Ok(name),
        Err(problem) => Err(format!("{what} {problem}; remove it")),
    }
}

/// Returns the zone: the setting, otherwise `<deployment>_<namespace>`. The deployment comes from
/// `DEPLOYMENT_NAME`, or from `POD_NAME` without its two generated parts; the namespace comes from
/// `POD_NAMESPACE`.
///
/// # Errors
/// Nothing names the zone, or it contains a character that no hub accepts. The message says what to set.
pub(super) fn zone_id(setting: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    if let Some(zone) = setting {
        return checked("zoneId", zone.to_owned());
    }
    let deployment = set(env, "DEPLOYMENT_NAME").or_else(|| deployment_of(&set(env, "POD_NAME")?));
    match (deployment, set(env, "POD_NAMESPACE")) {
        (Some(deployment), Some(namespace)) => {
            checked("the zone (DEPLOYMENT_NAME or POD_NAME, and POD_NAMESPACE)", format!("{deployment}_{namespace}"))
        }
        _ => Err("the zone is not known; set zoneId in armory-agent.yml, or POD_NAMESPACE and DEPLOYMENT_NAME (or POD_NAME)".to_owned()),
    }
}

/// Returns the deployment of a pod: `name` for `name-5d9c7-x2v4q`.
fn deployment_of(pod: &str) -> Option<String> {
    let (replica_set, _) = pod.rsplit_once('-')?;
    let (deployment, _) = replica_set.rsplit_once('-')?;
    (!deployment.is_empty()).then(|| deployment.to_owned())
}

fn set(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    env(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_pod_name_less_its_two_generated_parts_is_the_deployment() {
        let env = env(&[("POD_NAME", "kubesvc-agent-5d9c7-x2v4q"), ("POD_NAMESPACE", "east")]);
        assert_eq!(zone_id(None, &env), Ok("kubesvc-agent_east".to_owned()));
    }

    #[test]
    fn the_setting_wins_over_the_environment() {
        let env = env(&[("DEPLOYMENT_NAME", "d"), ("POD_NAMESPACE", "n")]);
        assert_eq!(zone_id(Some("west"), &env), Ok("west".to_owned()));
        assert_eq!(zone_id(None, &env), Ok("d_n".to_owned()));
    }

    #[test]
    fn without_any_of_it_the_error_says_what_to_set() {
        let error = zone_id(None, &env(&[("POD_NAME", "simple")])).expect_err("nothing names a zone");
        assert!(error.contains("zoneId") && error.contains("POD_NAMESPACE"), "{error}");
    }

    #[test]
    fn an_id_or_a_zone_that_no_hub_takes_is_named_with_the_character() {
        let problem = agent_id(&env(&[("AGENT_ID", "agent\u{202e}1")])).expect_err("it turns text round");
        assert!(problem.contains("(AGENT_ID)") && problem.contains("U+202E"), "{problem}");
        let problem = zone_id(Some("z\u{200b}"), &env(&[])).expect_err("it is not seen");
        assert!(problem.starts_with("zoneId ") && problem.contains("U+200B"), "{problem}");
    }

    #[test]
    fn an_empty_agent_id_counts_as_none() {
        assert_eq!(agent_id(&env(&[("AGENT_ID", ""), ("POD_NAME", "pod-1")])), Ok("pod-1".to_owned()));
    }
}
