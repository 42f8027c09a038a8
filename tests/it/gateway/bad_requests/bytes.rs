//! Requests as bytes, at the direct door and behind the operator's API server.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::place::{Place, path_of};
use super::{Door, Tried};

/// Time limit for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// The kind after which the connection is ended.
const CUT: &str = "a body that is cut";

/// At which doors a kind is tried: some bytes do not get through another HTTP server.
#[derive(Clone, Copy)]
enum At {
    Direct,
    /// Both, with the gateway's own answer: the operator's API server passes paths on decoded, and judges none.
    Both,
    /// Both. The operator's API server refuses it before it passes anything on: with the same code, in its own words.
    RefusedInFront,
}

use At::{Both, Direct, RefusedInFront};

impl At {
    fn doors(self) -> &'static [Door] {
        match self {
            Direct => &[Door::Direct],
            Both | RefusedInFront => &[Door::Direct, Door::Aggregated],
        }
    }
}

/// One kind: what it is, the line of the request after the prefix of the account, headers, body, the codes that may
/// answer it, and a part of what the gateway must say.
struct Kind {
    what: &'static str,
    at: At,
    line: String,
    headers: String,
    body: Vec<u8>,
    /// Whether this side ends the connection after it.
    is_cut: bool,
    codes: &'static [u16],
    says: &'static str,
}

fn kind(
    what: &'static str,
    at: At,
    line: &str,
    headers: &str,
    codes: &'static [u16],
    says: &'static str,
) -> Kind {
    Kind {
        what,
        at,
        line: line.to_owned(),
        headers: headers.to_owned(),
        body: Vec::new(),
        is_cut: false,
        codes,
        says,
    }
}

/// `LINE` begins with a method; `{P}` stands for the path of the account's API, `{B}` for that of the bounded account.
fn paths() -> Vec<Kind> {
    let long = format!("GET {{P}}/api/v1/{} HTTP/1.1", "p".repeat(33 * 1024));
    vec![
        kind("CONNECT", Direct, "CONNECT localhost:6443 HTTP/1.1", "", &[400, 404, 405], ""),
        kind("asterisk form", Direct, "OPTIONS * HTTP/1.1", "", &[400, 404, 405], ""),
        kind("TRACE", Direct, "TRACE {P}/version HTTP/1.1", "", &[405], ""),
        kind("a method that is none", Direct, "PURGE {P}/version HTTP/1.1", "", &[405], ""),
        kind("a NUL", Direct, "GET {P}/api\0 HTTP/1.1", "", &[400], ""),
        kind("a tab", Direct, "GET {P}/a\tpi HTTP/1.1", "", &[400], ""),
        kind("no version", Direct, "GET {P}/api", "", &[400], ""),
        kind("a version that is none", Direct, "GET {P}/api HTTP/9.9", "", &[400, 505], ""),
        kind("no path", Direct, "GET HTTP/1.1", "", &[400], ""),
        kind("a dot segment", Both, "GET {P}/api/./v1 HTTP/1.1", "", &[400], "dot segment"),
        kind("dot segments", Both, "GET {P}/api/v1/../../x HTTP/1.1", "", &[400], "dot segment"),
        kind("encoded in capitals", Both, "GET {P}/api/%2E%2E/x HTTP/1.1", "", &[400], "dot segment"),
        kind("half encoded", Both, "GET {P}/api/.%2e/x HTTP/1.1", "", &[400], "dot segment"),
        kind("encoded twice", Both, "GET {P}/api/%252e%252e/x HTTP/1.1", "", &[400], "dot segment"),
        kind("behind an encoded slash", Both, "GET {P}/api%2f..%2fx HTTP/1.1", "", &[400], "dot segment"),
        kind("an empty segment, encoded", Both, "GET {P}/api/%2fv1 HTTP/1.1", "", &[400], "empty segment"),
        kind("an encoded NUL", Both, "GET {P}/api/v1/pods%00 HTTP/1.1", "", &[400], "control byte"),
        kind("an encoded delete", Both, "GET {P}/api/v1/pods%7f HTTP/1.1", "", &[400], "control byte"),
        kind("a backslash", Direct, "GET {P}/api\\v1 HTTP/1.1", "", &[400], ""),
        kind("no UTF-8", Both, "GET {P}/api/%ff HTTP/1.1", "", &[400], "UTF-8"),
        kind("too long", Direct, &long, "", &[400, 414, 431], ""),
        kind(
            "another namespace",
            Both,
            "GET {B}/api/v1/namespaces/kube-system/pods HTTP/1.1",
            "",
            &[403],
            "policy: ",
        ),
        kind(
            "another namespace, encoded",
            Direct,
            "GET {B}/api/v1/namespaces/kube%2dsystem/pods HTTP/1.1",
            "",
            &[403],
            "policy: ",
        ),
        kind("a list over all", Both, "GET {B}/api/v1/configmaps HTTP/1.1", "", &[403], "policy: "),
        kind("a watch over all", Both, "GET {B}/api/v1/configmaps?watch=1 HTTP/1.1", "", &[403], "policy: "),
        kind("a cluster-wide kind", Both, "GET {B}/api/v1/nodes HTTP/1.1", "", &[403], "policy: "),
        kind(
            "a write elsewhere",
            Both,
            "DELETE {B}/api/v1/namespaces/kube-system/pods/x HTTP/1.1",
            "",
            &[403],
            "policy: ",
        ),
        kind(
            "a namespace itself",
            Both,
            "DELETE {B}/api/v1/namespaces/default HTTP/1.1",
            "",
            &[403],
            "policy: ",
        ),
        kind(
            "an account in another namespace",
            RefusedInFront,
            "GET {D}/version HTTP/1.1",
            "",
            &[403],
            "accounts/proxy",
        ),
        kind(
            "an account without a name",
            Direct,
            "GET {N}/accounts//proxy/version HTTP/1.1",
            "",
            &[404],
            "NAMESPACE",
        ),
        kind(
            "an account with a slash",
            Direct,
            "GET {N}/accounts/a%2fb/proxy/version HTTP/1.1",
            "",
            &[404],
            "NAMESPACE",
        ),
        kind("another subresource", Direct, "GET {N}/accounts/prod/status HTTP/1.1", "", &[404], "NAMESPACE"),
        kind(
            "another version of the API",
            Direct,
            "GET /apis/proxy.kubesvc.io/v9/x HTTP/1.1",
            "",
            &[404],
            "NAMESPACE",
        ),
        kind(
            "operations are only read here",
            Direct,
            "POST {N}/accounts/prod/operations HTTP/1.1",
            "Content-Length: 0\r\n",
            &[405],
            "",
        ),
    ]
}

fn headers() -> Vec<Kind> {
    let get = "GET {P}/version HTTP/1.1";
    let many: String = (0..300).map(|number| format!("X-Many-{number}: 1\r\n")).collect();
    let large = format!("X-Large: {}\r\n", "x".repeat(65 * 1024));
    let root = "Impersonate-User: root\r\n";
    let named = format!("Connection: Impersonate-User\r\n{root}");
    vec![
        kind("Impersonate-User", RefusedInFront, get, root, &[403], "impersonate-user"),
        kind(
            "Impersonate-User that Connection names",
            RefusedInFront,
            get,
            &named,
            &[403],
            "impersonate-user",
        ),
        kind(
            "Impersonate-Group",
            Direct,
            get,
            "Impersonate-Group: system:masters\r\n",
            &[403],
            "impersonate-group",
        ),
        kind("Impersonate-Uid", Direct, get, "Impersonate-Uid: 1\r\n", &[403], "impersonate-uid"),
        kind("a line feed in a header", Direct, get, "X-A: b\n evil: 1\r\n", &[400], ""),
        kind("a carriage return in a header", Direct, get, "X-A: b\rX-B: c\r\n", &[400], ""),
        kind("a NUL in a header", Direct, get, "X-A: b\0c\r\n", &[400], ""),
        kind("a header without a name", Direct, get, ": b\r\n", &[400], ""),
        kind("a header with a space in its name", Direct, get, "X A: b\r\n", &[400], ""),
        kind("300 headers", Direct, get, &many, &[400, 431], ""),
        kind("65 KiB of headers", Direct, get, &large, &[400, 431], ""),
        kind(
            "two lengths",
            Direct,
            "POST {P}/x HTTP/1.1",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            &[400],
            "",
        ),
        kind("a negative length", Direct, "POST {P}/x HTTP/1.1", "Content-Length: -1\r\n", &[400], ""),
        kind(
            "a coding that is none",
            Direct,
            "POST {P}/x HTTP/1.1",
            "Transfer-Encoding: magic\r\n",
            &[400, 501],
            "",
        ),
        kind(
            "an upgrade to nothing",
            Direct,
            "GET {P}/version HTTP/1.1",
            "Connection: Upgrade\r\n",
            &[200, 400],
            "",
        ),
    ]
}

fn bodies() -> Vec<Kind> {
    let post = "POST {P}/api/v1/namespaces/default/configmaps HTTP/1.1";
    let chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    let chunk = [&b"100000\r\n"[..], &vec![b' '; 1 << 20], b"\r\n"].concat();
    let with = |what, headers: &str, body: Vec<u8>, codes, says| Kind {
        body,
        is_cut: what == CUT,
        ..kind(what, Direct, post, headers, codes, says)
    };
    vec![
        with(
            "9 MiB in chunks",
            chunked,
            [chunk.repeat(9), b"0\r\n\r\n".to_vec()].concat(),
            &[413],
            "8388608",
        ),
        with("a body that never ends", chunked, chunk.repeat(64), &[413], "8388608"),
        with("a length beyond all bounds", "Content-Length: 99999999999\r\n", Vec::new(), &[413], "8388608"),
        with("a chunk whose size is none", chunked, b"zz\r\n{}\r\n0\r\n\r\n".to_vec(), &[400], ""),
        with(CUT, "Content-Length: 100\r\n", b"{\"kind\":".to_vec(), &[0, 400], ""),
        with(
            "a body that is no JSON",
            "Content-Type: application/json\r\nContent-Length: 3\r\n",
            b"{]}".to_vec(),
            &[400],
            "",
        ),
        with(
            "a body of another media type",
            "Content-Type: text/html\r\nContent-Length: 3\r\n",
            b"<p>".to_vec(),
            &[415],
            "",
        ),
    ]
}

/// Headers in place of the good token.
fn tokens(token: &str, deleted: &str) -> Vec<(&'static str, String)> {
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.";
    let mut altered = token.to_owned();
    let last = altered.pop().unwrap_or('A');
    altered.push(if last == 'A' { 'B' } else { 'A' });
    altered.insert(token.len() / 2, 'x');
    vec![
        ("an empty token", "Authorization: Bearer \r\n".to_owned()),
        ("a token without a scheme", format!("Authorization: {token}\r\n")),
        ("a token that nobody signed", format!("Authorization: Bearer {none}\r\n")),
        ("a token that was altered", format!("Authorization: Bearer {altered}\r\n")),
        ("a token of 60 KiB", format!("Authorization: Bearer {}\r\n", "x".repeat(60 * 1024))),
        ("the token of a user that is gone", format!("Authorization: Bearer {deleted}\r\n")),
        ("a user in a header", "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\n".to_owned()),
    ]
}

/// Tries all kinds.
pub(super) async fn try_all(place: &Place, token: &str, own_token: &str, tried: &mut Tried) {
    let namespace = place.world.namespace();
    let line = |line: &str| {
        line.replace("{P}", &place.path())
            .replace("{B}", &path_of(namespace, "bounded"))
            .replace("{D}", &path_of("default", "prod"))
            .replace("{N}", &format!("/apis/proxy.kubesvc.io/v1alpha1/namespaces/{namespace}"))
    };
    for kind in paths().into_iter().chain(headers()).chain(bodies()) {
        for &door in kind.at.doors() {
            let token = if door == Door::Direct { token } else { own_token };
            let head = format!(
                "{}\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n{}\r\n",
                line(&kind.line),
                kind.headers
            );
            let bytes = [head.as_bytes(), &kind.body].concat();
            let answered = exchange(place, door, bytes, kind.is_cut, LIMIT).await;
            tried.note(&format!("{} ({door:?})", kind.what), judge(&kind, door, answered));
        }
    }
    let deleted = place.person("eve", "[]", Some("kubesvc")).await;
    let gone = ["delete", "serviceaccount", "eve", "-n", namespace];
    kubesvc_testkit::must(place.world.control_plane().kubectl(gone).await.ok());
    for (what, headers) in tokens(token, &deleted) {
        let head = line(&format!(
            "GET {{P}}/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        ));
        let answered = exchange(place, Door::Direct, head.into_bytes(), false, LIMIT).await;
        let refused = kind(what, Direct, "", "", &[401], "");
        tried.note(what, judge(&refused, Door::Direct, answered));
    }
}

/// Sends bytes, and reads the answer to its end: its code and its text. 0: the connection was closed without one.
pub(super) async fn exchange(
    place: &Place,
    door: Door,
    bytes: Vec<u8>,
    is_cut: bool,
    limit: Duration,
) -> Result<(u16, String), String> {
    let exchanging = async {
        let (mut reader, mut writer) = tokio::io::split(door.connect(place).await);
        // It may be answered, and closed, before all of it is sent.
        let sending = tokio::spawn(async move {
            let _ = writer.write_all(&bytes).await;
            let _ = writer.flush().await;
            if is_cut {
                let _ = writer.shutdown().await;
            }
            writer
        });
        let mut answer = Vec::new();
        let read = reader.read_to_end(&mut answer).await;
        sending.abort();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let code = text.strip_prefix("HTTP/1.1 ").or_else(|| text.strip_prefix("HTTP/1.0 "));
        match code.and_then(|rest| rest.get(..3)?.parse().ok()) {
            Some(code) => Ok((code, text)),
            None if answer.is_empty() => Ok((0, format!("{read:?}"))),
            None => Err(text),
        }
    };
    tokio::time::timeout(limit, exchanging).await.map_err(|_| "no answer in time".to_owned())?
}

fn judge(kind: &Kind, door: Door, answered: Result<(u16, String), String>) -> Result<(), String> {
    let (code, text) = answered?;
    let shown = || text.chars().take(600).collect::<String>();
    if !kind.codes.contains(&code) {
        return Err(format!("{code} instead of {:?}: {}", kind.codes, shown()));
    }
    let says = match (door, kind.at) {
        (Door::Aggregated, RefusedInFront) => r#""kind":"Status""#,
        _ => kind.says,
    };
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    if !body.to_lowercase().contains(&says.to_lowercase()) {
        return Err(format!("{code} does not say {says:?}: {}", shown()));
    }
    Ok(())
}
