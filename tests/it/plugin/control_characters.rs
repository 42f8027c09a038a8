//! Text from the cluster that could steer a terminal.

use serde_json::json;

use super::json as read;
use super::scripted_api::{ScriptedApi, account};

#[tokio::test]
async fn control_characters_from_the_cluster_never_reach_the_terminal() {
    let message = "red \x1b[31m, clear \x1b[2J, csi \u{9b}5n, bell \x07, turned \u{202e}txt.exe";
    let mut prod = account("prod");
    prod["status"] = json!({
        "state": "FAILED", "observedGeneration": 1, "failedCount": 1, "errorMessage": message,
        "kubeVersion": "v1\x1b]0;title\x07",
        "conditions": [{"type": "Ready", "status": "False", "reason": "Timeout", "message": message,
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let api = ScriptedApi::with_accounts([prod]).await;
    for arguments in [
        &["list"][..],
        &["list", "-o", "wide"],
        &["list", "-o", "json"],
        &["list", "-o", "yaml"],
        &["describe", "prod"],
        &["why", "prod"],
        &["why", "prod", "-o", "yaml"],
    ] {
        let printed = api.shown(arguments).await;
        let steering: Vec<_> =
            printed.chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}').collect();
        assert!(steering.is_empty(), "{arguments:?}: {steering:?} in {printed:?}");
    }
    let json = read(&api.shown(&["list", "prod", "-o", "json"]).await);
    assert_eq!(json["status"]["errorMessage"], message, "JSON says the same, escaped");
}
