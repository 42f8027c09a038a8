//! What has to hold, whatever the screen showed.

use serde_json::Value;

use super::screen::Screen;
use super::{Demo, OTHER_ZONE, http_get, sql};

impl Demo {
    /// What has to hold, whatever the screen showed.
    pub(super) async fn check(&self, screen: &Screen) -> Result<(), String> {
        screen.heading("Checks");
        screen.say("");
        screen
            .step("REST, kubectl and SQL agree on every account", async {
                let rows = sql::rows(&self.files.database()).await?;
                for name in ["good", "bad", "no-agent"] {
                    let state = self.jsonpath(name, "{.status.state}").await?;
                    let answer = text_at(&self.account(name).await?, "/status");
                    let row = rows.iter().find(|row| row[0] == name).map(|row| row[1].clone());
                    if answer != state || row.as_deref() != Some(state.as_str()) {
                        return Err(format!("{name}: kubectl says {state}, REST {answer}, SQL {row:?}"));
                    }
                }
                Ok(())
            })
            .await?;
        screen
            .step("each failure says what it is and whether it is tried again", async {
                self.expect_failure("bad", "ExecForbidden", "exec", "True").await?;
                self.expect_failure("no-agent", "NoAgent", OTHER_ZONE, "False").await
            })
            .await?;
        screen.step("the token is in no object, answer, row or log", self.expect_no_token()).await
    }

    /// The condition Ready has this reason, the message speaks of `word`, and Stalled is as given.
    async fn expect_failure(
        &self,
        name: &str,
        reason: &str,
        word: &str,
        stalled: &str,
    ) -> Result<(), String> {
        let condition =
            |type_: &str, field: &str| format!("{{.status.conditions[?(@.type=={type_:?})].{field}}}");
        let found = [
            self.jsonpath(name, &condition("Ready", "reason")).await?,
            self.jsonpath(name, "{.status.errorMessage}").await?,
            self.jsonpath(name, &condition("Stalled", "status")).await?,
        ];
        if found[0] == reason && found[1].contains(word) && found[2] == stalled {
            return Ok(());
        }
        Err(format!(
            "{name}: reason, message and Stalled are {found:?}; expected {reason}, …{word}…, {stalled}"
        ))
    }

    async fn expect_no_token(&self) -> Result<(), String> {
        let answers = [
            ("kubectl get ksa,ksg", self.kubectl(&["get", "ksa,ksg", "-o", "yaml"]).await?.ok()?),
            ("kubectl get events", self.kubectl(&["get", "events", "-o", "yaml"]).await?.ok()?),
            ("GET /armory/accounts/good", self.account("good").await?.to_string()),
            ("GET /metrics", http_get::get_ok(self.rest, "/metrics").await?),
            ("the operator's log", self.operator.log_text()),
            ("the agent's log", self.agent.log_text()),
        ];
        for (place, text) in answers {
            if text.contains(&self.token) {
                return Err(format!("the token of the target cluster is in {place}"));
            }
        }
        for file in [self.files.database(), self.files.folder.file("kubesvc.db-wal")] {
            let bytes = std::fs::read(&file).unwrap_or_default();
            if bytes.windows(self.token.len()).any(|window| window == self.token.as_bytes()) {
                return Err(format!("the token of the target cluster is in {}", file.display()));
            }
        }
        Ok(())
    }
}

fn text_at(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}
