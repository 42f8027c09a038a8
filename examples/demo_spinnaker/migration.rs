//! Accounts that Clouddriver has of its own are taken over in waves: one wave fails and is rolled back, and a second migration
//! completes. Clouddriver's tables stay as they are.

use kubesvc_testkit::kubectl::{self, Output};
use reqwest::Method;
use serde_json::{Value, json};

use super::inputs::{FILE_ACCOUNTS, migration};
use super::screen::Screen;
use super::stage::program;
use super::{Demo, spinnaker};

/// Accounts in Clouddriver's table.
const ACCOUNTS: usize = 200;
/// Those of them whose API server does not answer, until they are corrected: more than 5 %.
const UNREACHABLE: std::ops::Range<usize> = 130..142;
/// Nothing listens there.
const NOBODY: &str = "https://127.0.0.1:9";
/// Exit code of `migrate` if some accounts are refused or failed.
const SOME_REFUSED: i32 = 3;

impl Demo {
    /// Takes 200 accounts of Clouddriver over.
    pub(super) async fn migrate(&self, screen: &Screen) -> Result<(), String> {
        screen.heading(&format!("{ACCOUNTS} accounts that Clouddriver has of its own"));
        screen.say("");
        screen
            .step(
                &format!("POST /credentials to Clouddriver: {ACCOUNTS} accounts in its table"),
                self.fill_clouddriver(),
            )
            .await?;
        let before = self.checksum(screen, "before").await?;
        // No Service leads to a program that runs outside of the cluster.
        let url = format!("http://127.0.0.1:{}", self.rest);
        let plan = screen
            .step("kubectl kubesvc migrate --dry-run: what would be done; exit code 3", async {
                let planned = self.plugin(&["migrate", "--all", "--dry-run", "--operator-url", &url]).await?;
                match (planned.code, self.migrated().await?) {
                    (Some(SOME_REFUSED), 0) => Ok(planned),
                    (code, written) => {
                        Err(format!("exit code {code:?}, {written} accounts: {}", planned.stderr))
                    }
                }
            })
            .await?;
        let lines: Vec<&str> = plan.stdout.lines().collect();
        let tail = lines.len().saturating_sub(3);
        let shown = [&lines[..3.min(tail)], &["…"], &lines[tail..]].concat().join("\n");
        screen.command("kubectl kubesvc migrate --all --dry-run", &format!("{shown}\n{}", plan.stderr));

        screen.say("");
        screen
            .step("kubectl apply -f first.yaml: waves of 25 %; the third one pauses", async {
                kubectl::run(&self.kubectl, &self.kubeconfig(), ["apply", "-f", "-"], &migration("first"))
                    .await?
                    .ok()?;
                let paused = "condition=Stalled";
                self.kubectl(&["wait", "ksm/first", &format!("--for={paused}"), "--timeout=60s"])
                    .await?
                    .ok()?;
                self.expect_checksum(&before).await
            })
            .await?;
        let status = self.plugin(&["migrate", "status", "first"]).await?.ok()?;
        let head: Vec<&str> = status.lines().take(6).collect();
        screen.command("kubectl kubesvc migrate status first", &format!("{}\n…", head.join("\n")));

        screen.say("");
        screen
            .step("kubectl kubesvc migrate rollback first --delete: none is left", async {
                self.plugin(&["migrate", "rollback", "first", "--delete", "--progress"]).await?.ok()?;
                match self.migrated().await? {
                    0 => self.expect_checksum(&before).await,
                    left => Err(format!("{left} accounts are left")),
                }
            })
            .await?;
        screen
            .step(
                &format!("PUT /credentials to Clouddriver: {} accounts are corrected", UNREACHABLE.len()),
                async {
                    for number in UNREACHABLE {
                        self.store(Method::PUT, number, &self.good_kubeconfig()?).await?;
                    }
                    Ok(())
                },
            )
            .await?;
        let before = self.checksum(screen, "after the correction").await?;
        let arguments = [
            "migrate",
            "--match",
            "account-.*",
            "--zone",
            "east",
            "--wave",
            "50%",
            "--soak",
            "2s",
            "--progress",
        ];
        let done = screen
            .step("kubectl kubesvc migrate --match 'account-.*': all of them are ACTIVE", async {
                let done = self.plugin(&arguments).await?;
                let said = format!("{ACCOUNTS} of {ACCOUNTS} accounts are ACTIVE");
                match (done.code, self.migrated().await?) {
                    (Some(0), ACCOUNTS) if done.stderr.contains(&said) => Ok(done),
                    (code, here) => {
                        Err(format!("exit code {code:?}, {here} accounts: {}{}", done.stdout, done.stderr))
                    }
                }
            })
            .await?;
        screen.command(
            "kubectl kubesvc migrate --match 'account-.*' --zone east --wave 50% --soak 2s --progress",
            &format!("{}{}", done.stdout, done.stderr),
        );
        screen.say("");
        let after = self.checksum(screen, "after the migration").await?;
        if after != before {
            return Err("Clouddriver's tables were written".to_owned());
        }
        let why = screen
            .step("kubectl kubesvc why account-000: who else manages it, and the ways out", async {
                self.wait_for("account-000", "condition=ClouddriverAlso").await?;
                let why = self.why("account-000").await?;
                if why.contains("DELETE /credentials/account-000") { Ok(why) } else { Err(why) }
            })
            .await?;
        screen.command("kubectl kubesvc why account-000", &why);
        Ok(())
    }

    /// Adds the accounts to Clouddriver's table and file, as a person does.
    async fn fill_clouddriver(&self) -> Result<(), String> {
        self.clouddriver.set_accounts(FILE_ACCOUNTS)?;
        let good = self.good_kubeconfig()?;
        let bad = good.replace(&self.target.server_url(), NOBODY);
        for number in 0..ACCOUNTS {
            let kubeconfig = if UNREACHABLE.contains(&number) { &bad } else { &good };
            self.store(Method::POST, number, kubeconfig).await?;
        }
        Ok(())
    }

    fn good_kubeconfig(&self) -> Result<String, String> {
        Ok(self.target.kubeconfig_for_token(self.target.token("shop").ok_or("no user")?))
    }

    async fn store(&self, method: Method, number: usize, kubeconfig: &str) -> Result<(), String> {
        let definition = json!({
            "type": "kubernetes",
            "name": format!("account-{number:03}"),
            "kubeconfigContents": kubeconfig,
            "namespaces": ["shop"],
            "kinds": ["configMap"],
            "cacheThreads": 1,
            "checkPermissionsOnStartup": false,
        });
        spinnaker::store(&self.clouddriver.base_url(), method, &definition).await
    }

    /// Number of accounts that were taken over.
    async fn migrated(&self) -> Result<usize, String> {
        let list =
            self.kubectl(&["get", "ksa", "-l", "kubesvc.io/origin=migrated", "-o", "json"]).await?.ok()?;
        let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        Ok(list["items"].as_array().map_or(0, Vec::len))
    }

    async fn checksum(&self, screen: &Screen, when: &str) -> Result<String, String> {
        let checksum = self.clouddriver.tables().checksum().await?;
        let short = checksum.get(..12).unwrap_or_default();
        screen
            .step(&format!("… checksum of Clouddriver's tables {when}: {short}"), async {
                Ok(checksum.clone())
            })
            .await
    }

    async fn expect_checksum(&self, wanted: &str) -> Result<(), String> {
        match self.clouddriver.tables().checksum().await? {
            same if same == wanted => Ok(()),
            _ => Err("Clouddriver's tables were written".to_owned()),
        }
    }

    async fn plugin(&self, arguments: &[&str]) -> Result<Output, String> {
        kubectl::run(&program("kubectl-kubesvc")?, &self.kubeconfig(), arguments, "").await
    }
}
