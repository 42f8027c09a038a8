//! The route of the sample for nginx: calls below `/credentials` reach kubesvc as they were sent, all others Clouddriver.

use super::*;
use kubesvc_testkit::nginx::Nginx;

const SAMPLE: &str = include_str!("../../../config/clouddriver/routes/nginx.conf");

/// The sample with the places of this test.
fn site(port: u16, kubesvc: u16, clouddriver: u16) -> String {
    let places = [
        ("kubesvc-operator.kubesvc.svc.cluster.local:7002", kubesvc),
        ("spin-clouddriver-direct.spinnaker.svc.cluster.local:7002", clouddriver),
    ];
    let mut site = SAMPLE.replace("listen 7002;", &format!("listen 127.0.0.1:{port};"));
    for (name, port) in places {
        assert!(site.contains(name), "the sample names {name}");
        site = site.replace(name, &format!("127.0.0.1:{port}"));
    }
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_through_nginx_reach_kubesvc_as_they_were_sent_and_all_others_clouddriver() {
    let front = Front::start(Database::Sqlite, true).await;
    let (kubesvc, clouddriver) = (front.world.operator().rest_port(), front.clouddriver.port());
    let nginx = must(Nginx::start(|port| site(port, kubesvc, clouddriver)).await);
    let through = async |call: Call| must(send(nginx.port(), call).await);

    // Names as people give them, and how they are sent in a path.
    for (name, path) in [("prod", "prod"), ("my account", "my%20account"), ("größe", "gr%C3%B6%C3%9Fe")] {
        let answer = through(Call::new("POST", "/credentials").json(&front.definition(name))).await;
        assert_eq!((answer.status, result(&answer)), (200, "created"), "{name}: {answer}");
        eventually("the account is loaded", MAX_WAIT, async || {
            let answer = send(nginx.port(), Call::get(&format!("/credentials/{path}"))).await?;
            if answer.json["name"] == name { Ok(()) } else { Err(answer.text) }
        })
        .await;
        let mut changed = front.definition(name);
        changed["environment"] = json!("live");
        let path = format!("/credentials/{path}");
        let answer = through(Call::new("PUT", &path).json(&changed)).await;
        assert_eq!((answer.status, result(&answer)), (200, "updated"), "{name}: {answer}");
        let answer = through(Call::new("DELETE", &path)).await;
        assert_eq!((answer.status, result(&answer)), (200, "deleted"), "{name}: {answer}");
        assert!(must(front.clouddriver.tables().row(name).await).is_none());
    }

    // What Clouddriver says of a path, and not another path that nginx made of it.
    for path in
        ["/credentials?expand=true", "/credentials/a%2Fb", "/credentials/a%252Fb", "/credentials/none"]
    {
        let direct = must(send(kubesvc, Call::get(path)).await);
        let answer = through(Call::get(path)).await;
        // Only the time of an error differs.
        let of = |text: &str| {
            text.split_once("\",\"status\"").map_or(text.to_owned(), |(_, rest)| rest.to_owned())
        };
        assert_eq!((answer.status, of(&answer.text)), (direct.status, of(&direct.text)), "{path}");
    }
    let refused = through(Call::get("/credentials/type/kubernetes")).await;
    assert_eq!(refused.status, 403, "kubesvc answers: {refused}");
    let large = Call::new("POST", "/credentials").header("content-type", "application/json");
    let large = through(large.bytes(vec![b' '; (8 << 20) + 1])).await;
    assert_eq!(large.status, 413, "{large}");

    // Everything else is Clouddriver's, also while kubesvc is away.
    front.world.operator().kill();
    assert_eq!(through(Call::get("/health")).await.status, 200);
    assert_eq!(through(Call::get("/credentials")).await.status, 502);
}
