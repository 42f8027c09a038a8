//! The operator ends before and after each of its writes: Clouddriver and kubesvc then have the same.

use kubesvc_runtime::crash_points::POINTS;

use super::*;

const POST: [&str; 10] = [
    "intent-row:before",
    "intent-row:after",
    "credentials-call:before",
    "credentials-call:after",
    "rest-secret:before",
    "rest-secret:after",
    "rest-create:before",
    "rest-create:after",
    "intent-end:before",
    "intent-end:after",
];
const PUT: [&str; 3] = ["credentials-call:after", "rest-patch:before", "rest-patch:after"];
const DELETE: [&str; 3] = ["credentials-call:before", "credentials-call:after", "rest-delete:after"];

impl Front {
    /// Makes a call during which the operator ends at this point, and starts it again.
    pub(super) async fn end_at(&self, point: &str, call: Call) {
        let operator = self.world.operator();
        operator.terminate().await;
        operator.launch_with(&[("KUBESVC_CRASH_AT", point)]);
        operator.ready().await;
        // It has no answer, or one from before the end.
        let _ = send(operator.rest_port(), call).await;
        must(operator.ended(MAX_WAIT).await);
        operator.start().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_end_at_any_write() {
    let front = Front::start(Database::MariaDb, true).await;
    for (at, point) in POST.into_iter().enumerate() {
        let name = format!("account-{at}");
        front.end_at(point, Call::new("POST", "/credentials").json(&front.definition(&name))).await;
        let was_sent = at > 2;
        assert_eq!(front.until_settled(&name).await, was_sent, "{point}");
        if was_sent {
            front.world.until(&name, State::Active).await;
        }
    }
    for (point, at) in PUT.into_iter().zip(5..) {
        let name = format!("account-{at}");
        let mut changed = front.definition(&name);
        changed["environment"] = json!(point);
        front.end_at(point, Call::new("PUT", "/credentials").json(&changed)).await;
        assert!(front.until_settled(&name).await, "{point}");
        let account = front.world.object(&name).await.expect("it is there");
        assert_eq!(account.spec.environment.as_deref(), Some(point));
    }
    for (point, at) in DELETE.into_iter().zip(5..) {
        let name = format!("account-{at}");
        front.end_at(point, Call::new("DELETE", &format!("/credentials/{name}"))).await;
        assert_eq!(front.until_settled(&name).await, point == "credentials-call:before", "{point}");
    }
    // What Clouddriver never had stays, whether the call was sent or not.
    let own = json!([{"name": "own", "kubeconfigContents": front.cluster.kubeconfig_in_one_line()}]);
    let answer = front.write("POST", "/armory/accounts/dynamic", &own).await;
    assert_eq!(answer.status, 202, "{answer}");
    for point in
        ["intent-row:after", "credentials-call:before", "credentials-call:after", "intent-end:before"]
    {
        front.end_at(point, Call::new("DELETE", "/credentials/own")).await;
        front.until_none_is_open().await;
        assert!(front.world.object("own").await.is_some(), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_was_suspended_leaves_a_late_write_to_the_leader() {
    let front = Front::start(Database::Sqlite, true).await;
    let operator = front.world.operator();
    // Longer than a call may wait to be sent; longer than an account here may wait to follow.
    for (point, seconds, status) in [("intent-row:after", 16, 502), ("credentials-call:after", 5, 200)] {
        operator.terminate().await;
        operator.launch_with(&[("KUBESVC_STOP_AT", point), ("KUBESVC_INTENT_FOLLOW_SECONDS", "4")]);
        operator.ready().await;
        let name = format!("suspended-{seconds}");
        let definition = front.definition(&name);
        let resuming = async {
            eventually(&format!("it stands still at {point}"), MAX_WAIT, async || {
                if operator.is_paused() { Ok(()) } else { Err("it runs".to_owned()) }
            })
            .await;
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            operator.resume();
        };
        let (answer, ()) = tokio::join!(front.write("POST", "/credentials", &definition), resuming);
        assert_eq!(answer.status, status, "{point} {answer}");
        if status == 200 {
            assert_eq!(result(&answer), "pending; reason=kubesvc was suspended");
        }
        assert_eq!(front.until_settled(&name).await, status == 200, "{point}");
    }
}

#[test]
fn every_crash_point_of_a_call_is_tried() {
    let is_ours = |point: &&&str| point.starts_with("intent-") || point.starts_with("credentials-call:");
    let ours: Vec<_> = POINTS.iter().filter(is_ours).collect();
    assert_eq!(ours.len(), 6);
    assert!(ours.into_iter().all(|point| POST.contains(point)));
}
