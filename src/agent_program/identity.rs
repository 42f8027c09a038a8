//! Who an agent is: its id and its zone.

/// The agent's id: `AGENT_ID`, else `POD_NAME`, else host name and process id.
pub(super) fn agent_id(env: &dyn Fn(&str) -> Option<String>) -> String {
    set(env, "AGENT_ID")
        .or_else(|| set(env, "POD_NAME"))
        .unwrap_or_else(|| format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id()))
}

/// The zone: the setting, else `<deployment>_<namespace>` from `DEPLOYMENT_NAME`, or the pod name less its two
/// generated parts, and `POD_NAMESPACE`.
///
/// # Errors
/// If nothing names it; the message says what to set.
pub(super) fn zone_id(setting: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    if let Some(zone) = setting {
        return Ok(zone.to_owned());
    }
    let deployment = set(env, "DEPLOYMENT_NAME").or_else(|| deployment_of(&set(env, "POD_NAME")?));
    match (deployment, set(env, "POD_NAMESPACE")) {
        (Some(deployment), Some(namespace)) => Ok(format!("{deployment}_{namespace}")),
        _ => Err("the zone is not known; set zoneId in armory-agent.yml, or POD_NAMESPACE and DEPLOYMENT_NAME (or POD_NAME)".to_owned()),
    }
}

/// `name-5d9c7-x2v4q` is a pod of the deployment `name`.
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
    fn an_empty_agent_id_counts_as_none() {
        assert_eq!(agent_id(&env(&[("AGENT_ID", ""), ("POD_NAME", "pod-1")])), "pod-1");
    }
}
