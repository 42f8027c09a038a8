//! The command line, and what the environment says of the agent.

use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn configuration_errors_exit_with_2_and_other_errors_with_1_and_their_cause() {
    assert_eq!(StartError::UnknownZone.exit_code(), 2);
    assert_eq!(zone_id(Some("z\u{200b}"), &env(&[])).expect_err("it is not seen").exit_code(), 2);
    let error = StartError::Signals(io::Error::other("too many open files"));
    assert_eq!(
        (error.exit_code(), chain(&error).as_str()),
        (1, "signals cannot be caught: too many open files")
    );
}

fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

#[test]
fn a_pod_name_less_its_two_generated_parts_is_the_deployment() {
    let env = env(&[("POD_NAME", "kubesvc-agent-5d9c7-x2v4q"), ("POD_NAMESPACE", "east")]);
    assert_eq!(zone_id(None, &env).expect("a zone"), "kubesvc-agent_east");
}

#[test]
fn the_setting_wins_over_the_environment() {
    let env = env(&[("DEPLOYMENT_NAME", "d"), ("POD_NAMESPACE", "n")]);
    assert_eq!(zone_id(Some("west"), &env).expect("a zone"), "west");
    assert_eq!(zone_id(None, &env).expect("a zone"), "d_n");
}

#[test]
fn missing_identity_error_names_the_settings() {
    let error = zone_id(None, &env(&[("POD_NAME", "simple")])).expect_err("nothing names a zone").to_string();
    assert!(error.contains("zoneId") && error.contains("POD_NAMESPACE"), "{error}");
}

#[test]
fn an_id_or_a_zone_that_no_hub_takes_is_named_with_the_character() {
    let problem =
        agent_id(&env(&[("AGENT_ID", "agent\u{202e}1")])).expect_err("it turns text round").to_string();
    assert!(problem.contains("(AGENT_ID)") && problem.contains("U+202E"), "{problem}");
    let problem = zone_id(Some("z\u{200b}"), &env(&[])).expect_err("it is not seen").to_string();
    assert!(problem.starts_with("zoneId ") && problem.contains("U+200B"), "{problem}");
}

#[test]
fn an_empty_agent_id_counts_as_none() {
    let id = agent_id(&env(&[("AGENT_ID", ""), ("POD_NAME", "pod-1")]));
    assert_eq!(id.expect("an id"), "pod-1");
}

/// The settings that an agent with this file has.
fn settings_of(yaml: &str) -> AgentSettings {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("armory-agent.yml"), yaml).expect("written");
    let loaded = crate::settings::load(folder.path(), &|_| None, UnknownKeys::Error).expect("it is valid");
    options(&loaded.settings, &env(&[("AGENT_ID", "a"), ("ZONE_ID", "z")]))
        .expect("an id and a zone")
        .settings
}

#[test]
fn settings_of_requests_reach_the_part_that_makes_them() {
    let of_none = settings_of("zoneId: z").requests;
    assert!(of_none.keeps_answers);
    let requests = settings_of(
        "{zoneId: z, clouddriver: {responseRetries: {enabled: false}}, timeoutSeconds: 7, kubernetes: {\
         serverSideApply: {enabled: always, clearManagedFields: never, kinds: [{kind: Rollout.argoproj.io, enabled: never}]}, \
         retries: {enabled: true, maxRetries: 4, backOffMs: 250, retryAnyError: true, retryableErrors: [late]}}}",
    )
    .requests;
    assert!(!requests.keeps_answers);
    assert_eq!(requests.timeout, Duration::from_secs(7));
    let apply = requests.apply;
    let all = apply.server_side.expect("it is set");
    assert_eq!((all.enabled.as_str(), all.clear_managed_fields.as_str()), ("always", "never"));
    let kinds: Vec<_> = apply.kinds.iter().map(|one| (one.kind.as_str(), one.enabled.as_str())).collect();
    assert_eq!(kinds, [("Rollout.argoproj.io", "never")]);
    let retries = apply.retries.expect("they are set");
    assert!(retries.enabled && retries.retry_any_error);
    assert_eq!((retries.max_retries, retries.backoff_ms), (4, 250));
    assert_eq!(retries.retryable_errors, ["late"]);
}

#[test]
fn settings_of_lists_reach_the_part_that_paces_them() {
    let AgentSettings { reading, budgets, .. } = settings_of(
        "{zoneId: z, kubernetes: {cacheGroupSize: 3, cacheGroupDelayMs: 1500}, \
         tasks: {totalBudget: 5, budgetPerAccount: 2}}",
    );
    assert_eq!((budgets.lists, budgets.lists_per_account), (5, 2));
    assert_eq!((reading.group_size, reading.group_delay), (3, Duration::from_millis(1500)));
}
