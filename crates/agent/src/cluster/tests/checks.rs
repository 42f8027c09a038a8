//! What is asked on a new connection before it is used.

use std::sync::Arc;

use http::{Method, Response};

use super::exchanges::{HTTP1, HTTP2};
use super::test_server::{ServerOptions, TestResponse, whole};
use super::*;
use crate::activation::KnownCluster;
use kubesvc_core::wire::ops::ClusterIdentity;

const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system";

/// A server that answers with this uid of kube-system, under this status, and to every other request with `{}`.
async fn server_of(
    uid: &'static str,
    status: u16,
    authority: &Authority,
    options: ServerOptions,
) -> TestServer {
    TestServer::scripted(authority, options, move |request| {
        let is_check = request.uri().path() == KUBE_SYSTEM;
        async move {
            let body =
                if is_check { format!(r#"{{"metadata":{{"uid":"{uid}"}}}}"#) } else { "{}".to_owned() };
            let status = if is_check { status } else { 200 };
            Ok(Response::builder().status(status).body(whole(body)).expect("a response"))
        }
    })
    .await
}

fn client_of_cluster(uid: &str, server: &TestServer, authority: &Authority) -> ClusterClient {
    let endpoint = cluster(&server.url(), Some(authority));
    let identity = ClusterIdentity { kube_system_uid: uid.to_owned(), ..ClusterIdentity::default() };
    let check = Arc::new(KnownCluster::from(&identity));
    ClusterClient::checked(endpoint, &ClusterContext::default(), check).expect("a client")
}

#[tokio::test]
async fn each_new_connection_is_checked_once_before_it_is_used() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let server = server_of("a", 200, &authority, options).await;
        let client = client_of_cluster("a", &server, &authority);
        for _ in 0..2 {
            client.get(Use::Watches, "/one", "application/json").await.expect("an answer");
        }
        assert_eq!(server.paths(), [KUBE_SYSTEM, "/one", "/one"]);
        client.get(Use::Activation, "/two", "application/json").await.expect("an answer");
        assert_eq!(server.paths()[3..], [KUBE_SYSTEM, "/two"], "another pool has connections of its own");
    }
}

#[tokio::test]
async fn nothing_is_sent_to_another_cluster() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let server = server_of("b", 200, &authority, options).await;
        let client = client_of_cluster("a", &server, &authority);
        let request = || client.get(Use::Watches, "/one", "application/json");
        let (first, second) = tokio::join!(request(), request());
        for result in [first, second] {
            let error = result.expect_err("it is another cluster");
            assert_eq!(error.class(), Class::ClusterMismatch);
            assert!(error.to_string().contains("another cluster"), "{error}");
        }
        assert_eq!(server.paths(), [KUBE_SYSTEM, KUBE_SYSTEM]);
    }
}

#[tokio::test]
async fn server_that_has_a_fault_is_not_taken_for_another_cluster() {
    let authority = Authority::new();
    let server = server_of("a", 503, &authority, HTTP2).await;
    let client = client_of_cluster("a", &server, &authority);
    let error = client.get(Use::Watches, "/one", "application/json").await.expect_err("a fault");
    assert_eq!((error.class(), error.http_status()), (Class::Unreachable, 503));
    assert_eq!(server.paths(), [KUBE_SYSTEM]);
    let server = server_of("b", 403, &authority, HTTP2).await;
    let client = client_of_cluster("a", &server, &authority);
    client.get(Use::Watches, "/one", "application/json").await.expect("nothing tells that it is another one");
}

/// An API server ends an HTTP/2 connection after a 401.
#[tokio::test]
async fn refused_credential_is_told_by_the_first_answer_and_nothing_else_is_asked() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let server = server_of("a", 401, &authority, options).await;
        let client = client_of_cluster("a", &server, &authority);
        let request = ClusterRequest::new(Method::POST, "/one");
        let error = client.send(Use::Requests, request).await.expect_err("the credential is refused");
        assert_eq!((error.class(), error.http_status()), (Class::Auth, 401));
        let failure = Failure::from(error);
        assert!(failure.before_send && failure.message.contains("the credential is refused"), "{failure:?}");
        assert_eq!(server.paths(), [KUBE_SYSTEM]);
    }
}

#[tokio::test]
async fn request_whose_connection_does_not_pass_its_check_is_certainly_not_sent() {
    type Answer = fn() -> TestResponse;
    let answers: [(Answer, Class); 5] = [
        (|| Ok(Response::builder().status(503).body(whole("")).expect("a response")), Class::Unreachable),
        (|| Ok(Response::builder().status(429).body(whole("")).expect("a response")), Class::Unreachable),
        (|| Ok(Response::new(whole(vec![b'x'; 2 << 20]))), Class::Discovery),
        (|| Ok(Response::new(whole(r#"{"metadata":{"uid":"b"}}"#))), Class::ClusterMismatch),
        (|| Err(std::io::Error::other("cut")), Class::Unreachable),
    ];
    for (answer, class) in answers {
        let authority = Authority::new();
        let server = TestServer::scripted(&authority, HTTP1, move |_| async move { answer() }).await;
        let client = client_of_cluster("a", &server, &authority);
        let request = ClusterRequest::new(Method::POST, "/one");
        let error = client.send(Use::Requests, request).await.expect_err("it fails its check");
        assert_eq!(error.class(), class, "{error:?}");
        assert!(Failure::from(error).before_send, "{class:?}");
        assert_eq!(server.paths(), [KUBE_SYSTEM]);
    }
}

#[tokio::test]
async fn request_whose_connection_is_not_checked_in_time_is_certainly_not_sent() {
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP1, |_| std::future::pending::<TestResponse>()).await;
    let limits = Limits { connect: Duration::from_millis(500), ..Limits::default() };
    let context = ClusterContext { limits, ..ClusterContext::default() };
    let identity = ClusterIdentity { kube_system_uid: "a".to_owned(), ..ClusterIdentity::default() };
    let check = Arc::new(KnownCluster::from(&identity));
    let client = ClusterClient::checked(cluster(&server.url(), Some(&authority)), &context, check);
    let request = ClusterRequest::new(Method::POST, "/one");
    let error = client.expect("a client").send(Use::Requests, request).await.expect_err("it is late");
    assert_eq!(error.class(), Class::Timeout, "{error:?}");
    assert!(Failure::from(error).before_send);
}
