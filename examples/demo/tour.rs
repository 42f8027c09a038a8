//! What a person sees of the accounts, and what to try next.

use std::path::Path;

use serde_json::Value;

use super::screen::Screen;
use super::stage::program;
use super::{Demo, OTHER_ZONE, sql};

impl Demo {
    /// Objects, a REST answer and rows.
    pub(super) async fn show(&self, screen: &Screen) -> Result<(), String> {
        for command in [&["get", "ksa"][..], &["get", "ksg"]] {
            let output = self.kubectl(command).await?.ok()?;
            screen.command(&format!("kubectl {}", command.join(" ")), &output);
        }
        let described = self.kubectl(&["describe", "ksa", "bad"]).await?.ok()?;
        let excerpt: Vec<&str> =
            described.lines().skip_while(|line| !line.contains("Error Message:")).collect();
        screen.command("kubectl describe ksa bad | sed -n '/Error Message:/,$p'", &excerpt.join("\n"));
        let account = self.account("good").await?;
        let shown = ["agents", "kubeHost", "kubeVersion", "name", "status", "zoneId"];
        let command =
            format!("curl -s {}/armory/accounts/good | jq -S '{{{}}}'", self.url(), shown.join(", "));
        screen.command(&command, &pretty(&account, &shown));
        let rows = sql::rows(&self.files.database()).await?;
        screen.command(&self.sqlite(), &sql::print(&rows));
        Ok(())
    }

    /// Says what to try next.
    pub(super) fn suggest(&self, screen: &Screen) -> Result<(), String> {
        let folder = self.kubectl.parent().unwrap_or(Path::new("."));
        screen.heading("It stays up until Ctrl-C. In another terminal:");
        screen.suggestion(
            "the kubectl and the cluster of this demo",
            &format!(
                "export PATH={}:{}:$PATH KUBECONFIG={} KUBESVC_OPERATOR_URL={}",
                folder.display(),
                program("kubectl-kubesvc")?.parent().unwrap_or(Path::new(".")).display(),
                self.files.kubeconfig().display(),
                self.url()
            ),
        );
        screen.suggestion("watch the accounts", "kubectl get ksa --watch");
        screen.suggestion(
            "kubectl in the target cluster, through the agent; who did what there",
            "kubectl kubesvc on good -- get deployments -A\n    kubectl kubesvc operations good",
        );
        screen.suggestion(
            "the same as jane, who may not read the Secrets of this cluster",
            &format!(
                "KUBECONFIG={} kubectl --context good get namespaces",
                self.person_kubeconfig().display()
            ),
        );
        screen.suggestion(
            "start an agent in the zone that has none: no-agent becomes ACTIVE",
            &format!(
                "AGENT_ID=agent-2 {} --config-dir {}",
                program("kubesvc-agent")?.display(),
                self.files.agent_settings(OTHER_ZONE).display()
            ),
        );
        screen.suggestion(
            "take an account from its agents, and give it back",
            "kubectl patch ksa good --type=merge -p '{\"spec\":{\"state\":\"INACTIVE\"}}'\n    \
             kubectl patch ksa good --type=merge -p '{\"spec\":{\"state\":\"ACTIVE\"}}'",
        );
        screen.suggestion(
            "the same by REST",
            &format!(
                "curl -s -X PATCH {}/armory/accounts -H 'Content-Type: application/json' \\\n      \
                 -d '[{{\"name\":\"good\",\"state\":\"INACTIVE\"}}]'\n    curl -s {0}/armory/agents",
                self.url()
            ),
        );
        screen.suggestion("delete one, and see it go", "kubectl delete ksa bad && kubectl get ksa");
        screen.suggestion("the rows that Spinnaker reads", &self.sqlite());
        let database = self.files.database();
        screen.suggestion(
            "the objects of the target cluster",
            &format!("sqlite3 -header -column {} \"{}\"", database.display(), sql::CACHED_QUERY),
        );
        screen.suggestion(
            "what the programs say",
            &format!("tail -f {} {}", self.operator.log().display(), self.agent.log().display()),
        );
        screen.say("");
        Ok(())
    }
}

/// As `jq -S` prints these fields.
fn pretty(account: &Value, fields: &[&str]) -> String {
    let chosen: Value = fields.iter().map(|field| ((*field).to_owned(), account[*field].clone())).collect();
    serde_json::to_string_pretty(&chosen).unwrap_or_else(|_| chosen.to_string())
}
