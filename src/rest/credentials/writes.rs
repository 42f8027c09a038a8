//! A write of Clouddriver's accounts: its intent is stored, it is passed on once, and the account here follows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::AccountManagement;
use super::followed::{Followed, WrittenAccount};
use super::presence::before;
use crate::clouddriver::NotAnswered;
use crate::rest::RestState;
use crate::rest::callers::{RestCaller, namespace_of};
use crate::rest::error::RestError;
use crate::rest::lookup::NOT_READ_YET;
use kubesvc_clouddriver::interception::{AccountPresence, AccountsWrite, WriteVerb};
use kubesvc_clouddriver::registration::folded_name;
use kubesvc_core::spinnaker::is_account_name;
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::{IntentRow, StoreError};

/// Time for which a write waits for another one of the same name.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two attempts to store an intent.
const TURN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum age of an intent when its call is sent: a replica that was suspended meanwhile does not send it.
const MAX_UNSENT: Duration = Duration::from_secs(15);
/// Time limit for looking whether Clouddriver has an account, in all; longer than for reading the sources.
const LOOK_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for the account here to follow; the leader goes on after that.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);
/// Age of an intent, in seconds, at which accounts here no longer follow at this replica: before the leader takes it for one
/// that is no longer at it, and others write the name again.
const MAX_FOLLOW_SECONDS: u64 = 120;
/// Maximum length of the header's value, in characters.
const MAX_RESULT_CHARS: usize = 512;

const RESULT: HeaderName = HeaderName::from_static("x-kubesvc-result");

/// The intents of one write. The leader may settle those that this process no longer knows.
struct HeldIntents {
    credentials: Arc<AccountManagement>,
    rows: Vec<IntentRow>,
}

impl Drop for HeldIntents {
    fn drop(&mut self) {
        let mut under_way = self.credentials.under_way.lock();
        for row in &self.rows {
            under_way.remove(&(row.name.clone(), row.started_at));
        }
    }
}

impl RestState {
    /// Passes a write on, and answers what Clouddriver does.
    pub(super) async fn pass_write_on(
        &self,
        credentials: &Arc<AccountManagement>,
        caller: &RestCaller,
        write: AccountsWrite,
        (call, body): (Parts, Bytes),
        place: OwnedSemaphorePermit,
    ) -> Result<Response, RestError> {
        let left = self.left_to_others(caller, &write).await?;
        self.refuse_registered(caller, &write).await?;
        let names = write.accounts.keys().map(String::as_str);
        let followed: Vec<&str> =
            names.filter(|name| is_account_name(name) && !left.contains_key(*name)).collect();
        let follows = credentials.ports.follows && self.watches_accounts().is_ok();
        if !follows || followed.is_empty() {
            let mut answer = credentials.send(&call, body, place).await?;
            if let (CallOutcome::Done, Some(left)) =
                (call_outcome(write.verb, &answer), left.into_values().next().filter(|_| follows))
            {
                answer.headers_mut().insert(RESULT, header_value(&left.to_string()));
            }
            return Ok(answer);
        }
        let begun = Instant::now();
        let intents = self.begin_intents(credentials, write.verb, &followed, &body).await?;
        let elsewhere = match self.look_before(credentials, write.verb, &intents).await {
            Ok(elsewhere) => elsewhere,
            Err(error) => {
                self.end_intents(&intents).await;
                return Err(error);
            }
        };
        let sent = async {
            if begun.elapsed() > MAX_UNSENT {
                return Err(NotAnswered::NotSent("kubesvc was suspended; try again".to_owned()));
            }
            credentials.send(&call, body, place).await
        };
        let mut answer = match crash_points::around(Some("credentials-call"), sent).await {
            Ok(answer) => answer,
            Err(error) => {
                match &error {
                    NotAnswered::Unknown(_) => self.hand_over(&intents).await,
                    NotAnswered::Loop | NotAnswered::NotSent(_) => self.end_intents(&intents).await,
                }
                return Err(error.into());
            }
        };
        let result = match call_outcome(write.verb, &answer) {
            CallOutcome::Refused => {
                self.end_intents(&intents).await;
                return Ok(answer);
            }
            CallOutcome::Unknown => {
                let why = format!("outcome unknown, Clouddriver answered {}", answer.status().as_u16());
                Followed::Pending(why)
            }
            CallOutcome::Done => {
                let following = self.follow_all(caller, &write, (&intents, begun), elsewhere.as_deref());
                timeout(FOLLOW_TIMEOUT, following)
                    .await
                    .unwrap_or_else(|_| Followed::Pending("the Kubernetes API server is slow".to_owned()))
            }
        };
        let shown = Followed::of_all(std::iter::once(result.clone()).chain(left.into_values()).collect());
        match &result {
            Followed::Pending(_) => self.hand_over(&intents).await,
            _ => self.end_intents(&intents).await,
        }
        credentials.metrics.results.get_or_create(&[("result", result.word())]).inc();
        info!(accounts = ?followed, verb = write.verb.as_str(), %result, "a write of Clouddriver's accounts");
        answer.headers_mut().insert(RESULT, header_value(&shown.to_string()));
        Ok(answer)
    }

    /// Notes the accounts of a write, and returns those that stay as they are here because of the caller's rights, each with
    /// the result: an account here may be in another namespace than the one whose rights the call needs.
    async fn left_to_others(
        &self,
        caller: &RestCaller,
        write: &AccountsWrite,
    ) -> Result<BTreeMap<String, Followed>, RestError> {
        if caller.has_rights() && !self.accounts.is_synced() {
            return Err(RestError::unavailable(NOT_READ_YET));
        }
        let right = if write.verb == WriteVerb::Delete { "delete" } else { "update" };
        let mut left = BTreeMap::new();
        for name in write.accounts.keys() {
            let known = self.accounts.by_account_name(name).into_iter().next();
            let (namespace, uid) =
                known.as_deref().map_or(("", ""), |known| (namespace_of(known), known.uid()));
            caller.writes(name, namespace, uid);
            let Some(known) = &known else { continue };
            if !caller.has_rights() || caller.could(known, right).await? {
                continue;
            }
            let why = if caller.could(known, "get").await? {
                format!("you may not {right} the account of that name in kubesvc")
            } else if write.verb == WriteVerb::Post {
                "kubesvc has an account of that name".to_owned()
            } else {
                "kubesvc has no account of that name".to_owned()
            };
            left.insert(name.clone(), Followed::Left(why));
        }
        Ok(left)
    }

    /// Refuses names of accounts that kubesvc registered in Clouddriver, in any case of their letters.
    async fn refuse_registered(&self, caller: &RestCaller, write: &AccountsWrite) -> Result<(), RestError> {
        let Some(first) = write.accounts.keys().next() else { return Ok(()) };
        let rows = self.store.pushed().await;
        let rows = rows.map_err(|error| RestError::database(&error, first, "the registered accounts"))?;
        let folded: HashSet<String> = write.accounts.keys().map(|name| folded_name(name)).collect();
        let Some(row) = rows.iter().find(|row| folded.contains(&folded_name(&row.name))) else {
            return Ok(());
        };
        let account = self.accounts.by_uid(&row.account_uid);
        let is_seen = match &account {
            Some(account) if caller.has_rights() => caller.could(account, "get").await?,
            _ => true,
        };
        Err(RestError::conflict(match account {
            // Of an account that the caller may not see nothing is told but that the name is taken.
            Some(_) if !is_seen => "managed by kubesvc; choose another name".to_owned(),
            Some(account) => {
                let (namespace, name) = (&account.metadata.namespace, &account.metadata.name);
                let name = name.as_deref().unwrap_or_default();
                format!(
                    "managed by kubesvc account {}/{name}; change it there",
                    namespace.as_deref().unwrap_or_default()
                )
            }
            None => format!(
                "managed by kubesvc, which removes account {:?} from Clouddriver; try again",
                row.name
            ),
        }))
    }

    /// Stores an intent for each name, once no other write of it is under way.
    async fn begin_intents(
        &self,
        credentials: &Arc<AccountManagement>,
        verb: WriteVerb,
        names: &[&str],
        body: &[u8],
    ) -> Result<HeldIntents, RestError> {
        let hash = hex::encode(Sha256::digest(body));
        let started_at = credentials.next_start();
        let rows: Vec<IntentRow> = names
            .iter()
            .map(|name| IntentRow {
                name: (*name).to_owned(),
                verb: verb.as_str().to_owned(),
                body_hash: Some(hash.clone()),
                replica_id: self.settings.replica_id.to_string(),
                started_at,
                tries: 0,
            })
            .collect();
        credentials.under_way.lock().extend(rows.iter().map(|row| (row.name.clone(), row.started_at)));
        let intents = HeldIntents { credentials: Arc::clone(credentials), rows };
        let until = Instant::now() + TURN_TIMEOUT;
        loop {
            let begun = self.store.begin_intents(&intents.rows);
            let taken = crash_points::around(Some("intent-row"), begun).await.map_err(|error| {
                // Whether it was stored is not known; nothing is sent.
                RestError::database(&error, &intents.rows[0].name, "the intent of a write")
            })?;
            match taken {
                None => return Ok(intents),
                Some(name) if Instant::now() >= until => {
                    return Err(RestError::conflict(format!(
                        "another write of account {name:?} is under way, or its outcome is not known yet; try again"
                    )));
                }
                Some(_) => tokio::time::sleep(TURN_RETRY_DELAY).await,
            }
        }
    }

    /// Stores, of an account that is to be deleted, whether Clouddriver has it, so that its absence later shows what became
    /// of the write. Returns a source from which Clouddriver has the account even then.
    async fn look_before(
        &self,
        credentials: &AccountManagement,
        verb: WriteVerb,
        intents: &HeldIntents,
    ) -> Result<Option<String>, RestError> {
        let (WriteVerb::Delete, [row]) = (verb, intents.rows.as_slice()) else { return Ok(None) };
        if self.find(&row.name).await.is_ok_and(|found| found.account.is_none()) {
            return Ok(None);
        }
        let clouddriver = &*credentials.ports.accounts;
        let before = timeout(LOOK_TIMEOUT, before(&self.source_accounts.sources, clouddriver, &row.name));
        let before = before.await.unwrap_or_else(|_| Err("it does not list its accounts in time".to_owned()));
        let before = before.map_err(NotAnswered::NotSent)?;
        if before.has_row {
            let marked = self.store.mark_found(&intents.rows).await;
            marked.map_err(|error| RestError::database(&error, &row.name, "the intent of a write"))?;
        }
        Ok(before.elsewhere)
    }

    /// Lets the accounts here follow a write that Clouddriver has carried out.
    async fn follow_all(
        &self,
        caller: &RestCaller,
        write: &AccountsWrite,
        (intents, begun): (&HeldIntents, Instant),
        elsewhere: Option<&str>,
    ) -> Followed {
        if let Some(source) = elsewhere {
            return Followed::Left(format!("Clouddriver still has it from {source}"));
        }
        let presence =
            if write.verb == WriteVerb::Delete { AccountPresence::Absent } else { AccountPresence::Present };
        let longest = crash_points::seconds("KUBESVC_INTENT_FOLLOW_SECONDS", MAX_FOLLOW_SECONDS);
        let mut results = Vec::new();
        for row in &intents.rows {
            if begun.elapsed() > Duration::from_secs(longest) {
                results.push(Followed::Pending("kubesvc was suspended".to_owned()));
                break;
            }
            let account = WrittenAccount {
                intent: row,
                verb: write.verb,
                was_there: true,
                definition: write.accounts.get(&row.name).cloned(),
                source: "/credentials",
            };
            let followed = self.follow(presence, &account).await;
            if let Some(verb) = followed.right() {
                caller.followed(&row.name, verb);
            }
            results.push(followed);
        }
        Followed::of_all(results)
    }

    async fn end_intents(&self, intents: &HeldIntents) {
        let ending = crash_points::around(Some("intent-end"), self.store.end_intents(&intents.rows)).await;
        left_behind(intents, ending);
    }

    /// Leaves a write to the leader.
    async fn hand_over(&self, intents: &HeldIntents) {
        left_behind(intents, self.store.count_intent_tries(&intents.rows).await);
    }
}

/// An intent that cannot be changed is settled by the leader, which finds that its process no longer knows it.
fn left_behind(intents: &HeldIntents, result: Result<(), StoreError>) {
    if let Err(error) = result {
        let accounts: Vec<&str> = intents.rows.iter().map(|row| row.name.as_str()).collect();
        warn!(?accounts, error = %chain(&error), "cannot end the intent of a write; the leader will");
    }
}

/// What an answer says about a write.
enum CallOutcome {
    Done,
    Refused,
    Unknown,
}

/// Of a success, only what Clouddriver itself would answer counts: a page of a proxy in between is none.
fn call_outcome(verb: WriteVerb, answer: &Response) -> CallOutcome {
    let media_type = answer.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_json = media_type.is_some_and(|media_type| media_type.starts_with(b"application/json"));
    let fits = is_json || (verb == WriteVerb::Delete && media_type.is_none());
    match answer.status() {
        status if status.is_success() && fits => CallOutcome::Done,
        status if status.is_success() || status.is_server_error() => CallOutcome::Unknown,
        StatusCode::REQUEST_TIMEOUT => CallOutcome::Unknown,
        _ => CallOutcome::Refused,
    }
}

/// A text as the value of a header: other than printable ASCII is percent-encoded.
fn header_value(text: &str) -> HeaderValue {
    let encoded = percent_encoding::utf8_percent_encode(text, percent_encoding::CONTROLS).to_string();
    let encoded: String = encoded.chars().take(MAX_RESULT_CHARS).collect();
    HeaderValue::from_str(&encoded).unwrap_or_else(|_| HeaderValue::from_static("pending"))
}
