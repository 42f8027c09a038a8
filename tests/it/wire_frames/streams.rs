//! gRPC streams that violate the protocol, frame by frame.

use std::time::Duration;

use http::uri::PathAndQuery;
use kubesvc_core::wire::{common, ops};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::hub_frame::Frame as Answer;
use kubesvc_core::wire::ops::refused::Reason;

/// The hub waits 10 s for a Hello; everything is over well before this limit.
const LIMIT: Duration = Duration::from_secs(30);

/// A codec that passes bytes through unchanged.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

async fn channel(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("an address");
    endpoint.connect().await.expect("the hub listens")
}

/// Opens a stream that sends the messages from the channel, and stays open as long as the channel.
async fn open(port: u16, path: &'static str, messages: Messages) -> Result<Streaming<Vec<u8>>, Status> {
    let mut grpc = Grpc::new(channel(port).await);
    grpc.ready().await.expect("the hub listens");
    let answer = grpc.streaming(Request::new(messages), PathAndQuery::from_static(path), Raw).await?;
    Ok(answer.into_inner())
}

type Messages = futures::channel::mpsc::Receiver<Vec<u8>>;

/// Sends the first message, and the others after it was accepted. Returns the frames until the end of the
/// stream, and its final status.
async fn talk(port: u16, what: &str, messages: Vec<Vec<u8>>) -> (Vec<Answer>, Option<Status>) {
    let (mut sender, receiver) = futures::channel::mpsc::channel(16);
    let mut messages = messages.into_iter();
    let mut send = |message| sender.try_send(message).expect("the stream takes messages");
    messages.next().into_iter().for_each(&mut send);
    let mut frames = Vec::new();
    let ended = tokio::time::timeout(LIMIT, async {
        let mut stream = match open(port, "/ops.Operations/GetOps", receiver).await {
            Ok(stream) => stream,
            Err(status) => return Some(status),
        };
        loop {
            match stream.message().await {
                Ok(Some(bytes)) => {
                    let frame = ops::HubFrame::decode(&*bytes).expect("a frame").frame;
                    if let Some(Answer::Accepted(_)) = frame {
                        messages.by_ref().for_each(&mut send);
                    }
                    frames.extend(frame);
                }
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    });
    let ended = ended.await;
    assert!(ended.is_ok(), "{what}: the stream goes on after {frames:?}");
    (frames, ended.unwrap_or_default())
}

/// The status of a call to a method that does not exist.
async fn status_of_unknown_method(port: u16, path: &'static str) -> Status {
    let (mut sender, receiver) = futures::channel::mpsc::channel(16);
    sender.try_send(Vec::new()).expect("the stream takes messages");
    match open(port, path, receiver).await {
        Err(status) => status,
        Ok(mut stream) => stream.message().await.expect_err("the call is not there"),
    }
}

fn frame(frame: Frame) -> Vec<u8> {
    ops::AgentFrame { frame: Some(frame), seq: 1, ack: 0 }.encode_to_vec()
}

fn hello() -> ops::Hello {
    ops::Hello {
        agent_id: "stranger".to_owned(),
        boot_id: ulid::Ulid::generate().to_string(),
        connect_seq: 1,
        zone_id: "west".to_owned(),
        version: "0.0.0".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        ..ops::Hello::default()
    }
}

/// Checks that the stream ends with this refusal and a message.
async fn hold_refused(port: u16, what: &str, messages: Vec<Vec<u8>>, reason: Reason) {
    let (frames, status) = talk(port, what, messages).await;
    match frames.as_slice() {
        [Answer::Refused(refused)] => {
            assert_eq!(refused.reason(), reason, "{what}: {refused:?}");
            assert!(!refused.message.is_empty(), "{what}: {refused:?}");
        }
        _ => assert!(
            frames.is_empty() && status.is_some() && reason == Reason::Malformed,
            "{what}: {frames:?} {status:?}"
        ),
    }
}

pub(super) async fn unknown_calls_are_unimplemented(port: u16) {
    for path in ["/ops.Operations/Nothing", "/no.Such/Service", "/", "/events.Caching/Nothing"] {
        let status = status_of_unknown_method(port, path).await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
    }
}

pub(super) async fn garbage_is_refused(port: u16) {
    let noise: Vec<u8> = (0..1000).map(|_| rand::random()).collect();
    for bytes in [vec![0xff; 100], vec![0x0a, 0xff, 0xff, 0xff, 0x7f], b"GET / HTTP/1.1".to_vec(), noise] {
        let (frames, status) = talk(port, "no protobuf", vec![bytes]).await;
        let refused = matches!(frames.as_slice(), [Answer::Refused(_)]);
        assert!(refused || status.is_some(), "{frames:?} {status:?}");
    }
}

pub(super) async fn first_frames_that_are_no_hello_are_refused(port: u16) {
    let heartbeat = frame(Frame::Heartbeat(ops::Heartbeat::default()));
    let results = frame(Frame::AccountResults(ops::AccountResults::default()));
    let empty = ops::AgentFrame::default().encode_to_vec();
    for (what, first) in [("heartbeat", heartbeat), ("results", results), ("an empty frame", empty)] {
        hold_refused(port, what, vec![first], Reason::Malformed).await;
    }
}

pub(super) async fn bad_hellos_are_refused(port: u16) {
    let bad = |change: &dyn Fn(&mut ops::Hello)| {
        let mut hello = hello();
        change(&mut hello);
        vec![frame(Frame::Hello(hello))]
    };
    let malformed: [(&str, Vec<Vec<u8>>); 9] = [
        ("no agent id", bad(&|hello| hello.agent_id.clear())),
        ("a long agent id", bad(&|hello| hello.agent_id = "x".repeat(192))),
        ("a control character in the agent id", bad(&|hello| hello.agent_id = "a\nb".to_owned())),
        ("no zone", bad(&|hello| hello.zone_id.clear())),
        ("a long zone", bad(&|hello| hello.zone_id = "x".repeat(256))),
        ("a NUL in the zone", bad(&|hello| hello.zone_id = "a\0b".to_owned())),
        ("no boot id", bad(&|hello| hello.boot_id.clear())),
        ("a boot id that is no ULID", bad(&|hello| hello.boot_id = "yes".to_owned())),
        ("versions the wrong way round", bad(&|hello| (hello.protocol_min, hello.protocol_max) = (2, 1))),
    ];
    for (what, messages) in malformed {
        hold_refused(port, what, messages, Reason::Malformed).await;
    }
    let new = bad(&|hello| (hello.protocol_min, hello.protocol_max) = (7, 9));
    hold_refused(port, "a protocol of the future", new, Reason::ProtocolTooNew).await;
}

pub(super) async fn a_frame_over_the_limit_is_refused(port: u16) {
    let mut large = hello();
    large.version = "x".repeat(5 << 20);
    let (frames, status) = talk(port, "5 MiB", vec![frame(Frame::Hello(large))]).await;
    assert!(frames.iter().all(|frame| matches!(frame, Answer::Refused(_))), "{status:?}");
    assert!(!frames.is_empty() || status.is_some());
}

pub(super) async fn a_stream_without_a_hello_is_ended(port: u16) {
    let (frames, status) = talk(port, "no hello", Vec::new()).await;
    let refused = matches!(frames.as_slice(), [Answer::Refused(_)]);
    assert!(refused || status.is_some(), "{frames:?} {status:?}");
}

pub(super) async fn an_agent_id_that_is_taken_is_refused(port: u16) {
    let mut double = hello();
    (double.agent_id, double.zone_id) = ("agent-1".to_owned(), "east".to_owned());
    hold_refused(port, "a second agent-1", vec![frame(Frame::Hello(double))], Reason::DuplicateAgentId).await;
}

/// Sends a valid hello of a stranger in another zone, followed by results about an account of zone east.
pub(super) async fn false_reports_are_ignored(port: u16, uid: &str) {
    let account =
        |epoch| common::AccountRef { uid: uid.to_owned(), name: "prod".to_owned(), epoch, generation: 1 };
    let failure = common::Failure {
        class: common::failure::Class::Auth.into(),
        message: "a lie".to_owned(),
        ..common::Failure::default()
    };
    let results = [1, 2, u64::MAX].into_iter().map(|epoch| ops::AccountResult {
        account: Some(account(epoch)),
        outcome: Some(ops::account_result::Outcome::Failure(failure.clone())),
        ..ops::AccountResult::default()
    });
    let lies = [
        Frame::Hello(ops::Hello {
            accounts_held: vec![ops::HeldAccount { account: Some(account(1)), caching_epoch: 0 }],
            ..hello()
        }),
        Frame::AccountResults(ops::AccountResults { results: results.collect() }),
        Frame::Lost(ops::Lost { account: Some(account(1)), failure: Some(failure.clone()) }),
        Frame::Working(ops::Working { account: Some(account(1)) }),
        Frame::ProbeResult(ops::ProbeResult { account: Some(account(1)), ok: true, failure: None }),
        Frame::ProbeResult(ops::ProbeResult::default()),
        Frame::StaticAccounts(own_accounts("prod", 1)),
        Frame::StaticAccounts(own_accounts("flood", 2000)),
    ];
    let messages = lies.into_iter().map(frame).chain([vec![0xff; 50]]).collect();
    let (frames, _) = talk(port, "lies, and then garbage", messages).await;
    assert!(frames.iter().any(|frame| matches!(frame, Answer::Accepted(_))), "{frames:?}");
    assert!(!frames.iter().any(|frame| matches!(frame, Answer::AddAccounts(_))), "{frames:?}");
}

/// A complete list of an agent's own accounts.
fn own_accounts(name: &str, count: usize) -> ops::StaticAccounts {
    let account = Some(common::AccountRef { name: name.to_owned(), ..common::AccountRef::default() });
    let credential = Some(ops::account_spec::Credential::File("/kubeconfigs/one".to_owned()));
    let own = ops::AccountSpec { account, credential, ..ops::AccountSpec::default() };
    ops::StaticAccounts { accounts: vec![own; count], complete: true }
}

/// The services that reflection lists.
pub(super) async fn services(port: u16) -> Vec<String> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel(port).await);
    let answer =
        client.server_reflection_info(futures::stream::iter([question])).await.expect("reflection is served");
    let first = answer.into_inner().message().await.expect("an answer").expect("an answer");
    match first.message_response {
        Some(MessageResponse::ListServicesResponse(list)) => {
            list.service.into_iter().map(|one| one.name).collect()
        }
        _ => Vec::new(),
    }
}
