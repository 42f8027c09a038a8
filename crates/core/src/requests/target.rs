//! Path and query of a request as the API server reads them.
//!
//! The server decodes a path once before it reads it, so `pods%2Fweb%2Fexec` is what `pods/web/exec` is. What could be
//! read in two ways is refused.

use percent_encoding::percent_decode;
use url::form_urlencoded;

use super::MAX_TARGET_BYTES;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It changes nothing.
    Read,
    /// It may change something.
    Write,
    /// It connects to what runs in the cluster, or makes a token.
    Connect,
}

impl Class {
    /// The word of settings and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Connect => "connect",
        }
    }
}

/// Subresources that connect.
const CONNECTING: [&str; 4] = ["exec", "attach", "portforward", "proxy"];
/// Groups whose `…reviews` are questions.
const REVIEW_GROUPS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// First segments of paths at which the API server tells of itself, with names of objects in all namespaces.
const OF_SERVER: [&str; 3] = ["metrics", "logs", "debug"];

/// A path as the API server reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPath {
    /// Group of the resource; empty: core.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Namespace that the path names; of a Namespace its own name.
    pub namespace: Option<String>,
    /// Plural of the resource; `None`: the path is none of a resource.
    pub resource: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
    /// Whether the query asks for a watch.
    asks_to_watch: bool,
    /// Whether the query asks to follow a log.
    asks_to_follow: bool,
    /// Whether the path begins with the former verb `proxy`.
    is_proxy: bool,
    /// Whether the path begins with the former verb `watch`.
    is_watch_verb: bool,
    /// Whether what is at the path names objects of all namespaces: metrics, logs and dumps of the API server itself.
    is_of_server: bool,
}

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path {0}")]
pub struct TargetError(&'static str);

impl RequestPath {
    /// Reads a path with its query.
    ///
    /// # Errors
    /// The target could be read in more than one way, or is too long.
    pub fn read(target: &[u8]) -> Result<Self, TargetError> {
        if target.len() > MAX_TARGET_BYTES {
            return Err(TargetError("is longer than 32 KiB"));
        }
        if !target.iter().all(|byte| (0x21..=0x7e).contains(byte)) {
            return Err(TargetError(
                "has white space, control bytes or other bytes that must be percent-encoded",
            ));
        }
        let (path, query) = match target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&target[..at], &target[at + 1..]),
            None => (target, &[][..]),
        };
        if target.contains(&b'#') || path.contains(&b'\\') {
            return Err(TargetError("has a fragment or a backslash"));
        }
        let decoded = decoded(path)?;
        let mut read =
            Self::of_parts(&decoded.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>());
        (read.asks_to_watch, read.asks_to_follow) = (asks(query, "watch"), asks(query, "follow"));
        Ok(read)
    }

    fn of_parts(parts: &[&str]) -> Self {
        let (group, rest) = match parts {
            ["api", version, rest @ ..] => (("", version), rest),
            ["apis", group, version, rest @ ..] => ((*group, version), rest),
            [first, ..] => return Self { is_of_server: OF_SERVER.contains(first), ..Self::default() },
            [] => return Self::default(),
        };
        let mut read = Self { group: group.0.into(), version: (*group.1).into(), ..Self::default() };
        let rest = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => {
                read.is_watch_verb = true;
                rest
            }
            ["proxy", rest @ ..] if !rest.is_empty() => {
                read.is_proxy = true;
                rest
            }
            rest => rest,
        };
        let owned = |text: Option<&&str>| text.map(|text| (*text).to_owned());
        let rest = match rest {
            ["namespaces", namespace, "status" | "finalize", ..] => {
                read.namespace = Some((*namespace).to_owned());
                rest
            }
            ["namespaces", namespace, more @ ..] => {
                read.namespace = Some((*namespace).to_owned());
                if more.is_empty() { rest } else { more }
            }
            rest => rest,
        };
        read.resource = owned(rest.first());
        read.name = owned(rest.get(1));
        read.subresource = owned(rest.get(2));
        read
    }

    /// What a request does that asks for an upgrade of the connection. Only a watch and a log are known to be read over
    /// one; what any other opens is known to nobody, such as the console of a virtual machine behind a subresource.
    pub fn class_of_upgrade(&self, method: &str) -> Class {
        let is_log = self.group.is_empty()
            && self.resource.as_deref() == Some("pods")
            && self.subresource.as_deref() == Some("log")
            && method == "GET";
        if self.watches_objects(method) || is_log { self.class(method) } else { Class::Connect }
    }

    /// What a request with this method does, unless it upgrades the connection.
    pub fn class(&self, method: &str) -> Class {
        let is_get = matches!(method, "GET" | "HEAD" | "OPTIONS");
        let subresource = self.subresource.as_deref();
        let makes_token = self.resource.as_deref() == Some("serviceaccounts") && subresource == Some("token");
        if self.is_proxy || makes_token || subresource.is_some_and(|name| CONNECTING.contains(&name)) {
            return Class::Connect;
        }
        if is_get || self.is_review(method) { Class::Read } else { Class::Write }
    }

    /// Whether a request with this method creates a `…Review`: a question, of which nothing is kept.
    pub fn is_review(&self, method: &str) -> bool {
        method == "POST"
            && self.subresource.is_none()
            && self.name.is_none()
            && REVIEW_GROUPS.contains(&self.group.as_str())
            && self.resource.as_deref().is_some_and(|resource| resource.ends_with("reviews"))
    }

    /// Whether a request with this method is answered for as long as its caller reads: a watch of objects, or a log that
    /// is followed. The server answers any other at once, whatever its query asks for.
    pub fn is_long(&self, method: &str) -> bool {
        let is_of_log = self.subresource.as_deref() == Some("log");
        self.watches_objects(method) || (is_of_log && self.asks_to_follow && method == "GET")
    }

    /// Whether a request with this method is answered with the events of objects: no followed log, no subresource, and
    /// no single object, of which the server ignores `watch`.
    pub fn watches_objects(&self, method: &str) -> bool {
        let is_of_objects = self.resource.is_some() && self.subresource.is_none();
        let is_watch = self.is_watch_verb || (self.asks_to_watch && self.name.is_none());
        is_watch && is_of_objects && method == "GET"
    }

    /// Whether the path names all objects of a kind without a namespace: of all namespaces, or of a cluster-wide kind.
    /// The former verb `watch` with a name is a watch of the objects with this name in all namespaces.
    pub fn is_over_all(&self) -> bool {
        let is_of_many = self.name.is_none() || self.is_watch_verb;
        self.resource.is_some() && self.namespace.is_none() && is_of_many
    }

    /// Whether what is at the path names objects of all namespaces although it is none of a resource.
    pub fn is_of_server(&self) -> bool {
        self.is_of_server
    }
}

/// Whether a query sets a flag, as the server reads it: the first value counts, and only `0` and `false` do not set it.
fn asks(query: &[u8], flag: &str) -> bool {
    let pairs = query.split(|byte| *byte == b'&');
    // The server passes over others.
    let mut pairs = pairs.filter(|pair| !pair.contains(&b';') && is_encoded_well(pair));
    let value = pairs.find_map(|pair| {
        let (key, value) = form_urlencoded::parse(pair).next()?;
        (key == flag).then_some(value)
    });
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// Decodes a path once, as the server does.
fn decoded(path: &[u8]) -> Result<String, TargetError> {
    if path.first() != Some(&b'/') {
        return Err(TargetError("does not begin with a slash"));
    }
    let mut bytes = path.to_vec();
    let mut once = None;
    // A proxy in between may decode again.
    loop {
        check(&bytes)?;
        let next: Vec<u8> = percent_decode(&bytes).collect();
        let has_changed = next != bytes;
        if once.is_none() {
            if !is_encoded_well(path) {
                return Err(TargetError("has a percent sign that encodes nothing"));
            }
            check(&next)?;
            let text = String::from_utf8(next.clone());
            once = Some(text.map_err(|_| TargetError("is not UTF-8 when it is decoded"))?);
        }
        if !has_changed {
            return once.ok_or(TargetError("is empty"));
        }
        bytes = next;
    }
}

fn check(path: &[u8]) -> Result<(), TargetError> {
    if path.windows(2).any(|pair| pair == b"//") {
        return Err(TargetError("has an empty segment"));
    }
    if path.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| part == b"." || part == b"..") {
        return Err(TargetError("has a dot segment"));
    }
    if path.iter().any(u8::is_ascii_control) {
        return Err(TargetError("has a control byte"));
    }
    Ok(())
}

/// Whether each percent sign is followed by two hexadecimal digits.
fn is_encoded_well(text: &[u8]) -> bool {
    let at = text.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    at.into_iter().all(|(at, _)| {
        text.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(method: &str, target: &str) -> Class {
        RequestPath::read(target.as_bytes()).expect(target).class(method)
    }

    #[test]
    fn the_class_is_that_of_the_path_as_the_server_reads_it() {
        for (method, target, expected) in [
            ("GET", "/api/v1/namespaces/a/pods", Class::Read),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true", Class::Read),
            ("HEAD", "/version", Class::Read),
            ("GET", "/api/v1/namespaces/a/pods/p/exec?command=sh", Class::Connect),
            ("GET", "/api/v1/namespaces/a/pods/p%2Fexec", Class::Connect),
            ("POST", "/api/v1/namespaces/a/pods/p/attach", Class::Connect),
            ("GET", "/api/v1/namespaces/a/services/s/proxy/x/y", Class::Connect),
            ("GET", "/api/v1/nodes/n/proxy/metrics", Class::Connect),
            ("GET", "/api/v1/proxy/namespaces/a/pods/p", Class::Connect),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/s/token", Class::Connect),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Class::Read),
            ("POST", "/apis/authorization.k8s.io/v1/namespaces/a/localsubjectaccessreviews", Class::Read),
            ("POST", "/apis/example.org/v1/reviews", Class::Write),
            ("POST", "/api/v1/namespaces/a/configmaps", Class::Write),
            ("PATCH", "/apis/apps/v1/namespaces/a/deployments/d/scale", Class::Write),
            ("DELETE", "/api/v1/namespaces/exec", Class::Write),
            ("POST", "/healthz", Class::Write),
        ] {
            assert_eq!(class(method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn an_upgrade_connects_unless_it_reads_a_watch_or_a_log() {
        const VM: &str = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v";
        for (method, target, expected) in [
            ("GET", "/api/v1/namespaces/a/pods?watch=1", Class::Read),
            ("GET", "/api/v1/watch/namespaces/a/pods", Class::Read),
            ("GET", "/api/v1/namespaces/a/pods/p/log", Class::Read),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=1", Class::Read),
            ("GET", &format!("{VM}/console"), Class::Connect),
            ("GET", &format!("{VM}/vnc?watch=1"), Class::Connect),
            ("GET", &format!("{VM}/log?follow=1"), Class::Connect),
            ("GET", "/api/v1/namespaces/a/pods/p?watch=1", Class::Connect),
            ("GET", "/api/v1/namespaces/a/pods", Class::Connect),
            ("GET", "/console?watch=1", Class::Connect),
            ("HEAD", "/api/v1/namespaces/a/pods/p/log", Class::Connect),
            ("POST", "/api/v1/namespaces/a/pods?watch=1", Class::Connect),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Class::Connect),
        ] {
            let path = RequestPath::read(target.as_bytes()).expect(target);
            assert_eq!(path.class_of_upgrade(method), expected, "{method} {target}");
        }
    }

    #[test]
    fn namespaces_and_objects_are_read() {
        let read = |target: &str| RequestPath::read(target.as_bytes()).expect(target);
        let pod = read("/api/v1/namespaces/a/pods/p/log?follow=true");
        assert_eq!((pod.namespace.as_deref(), pod.name.as_deref()), (Some("a"), Some("p")));
        assert_eq!(pod.subresource.as_deref(), Some("log"));
        let namespace = read("/api/v1/namespaces/a/finalize");
        assert_eq!(
            (namespace.resource.as_deref(), namespace.name.as_deref()),
            (Some("namespaces"), Some("a"))
        );
        assert_eq!(namespace.namespace.as_deref(), Some("a"));
        let watch = read("/apis/apps/v1/watch/namespaces/a/deployments");
        assert!(watch.resource.as_deref() == Some("deployments") && watch.group == "apps");
        assert!(read("/api/v1/pods?watch=1").is_over_all());
        assert!(read("/apis/apps/v1").resource.is_none());
    }

    #[test]
    fn a_watch_of_objects_is_neither_a_log_nor_a_subresource_nor_one_object() {
        for (method, target, expected) in [
            ("GET", "/api/v1/pods?watch=1", true),
            ("GET", "/api/v1/namespaces?watch=true", true),
            ("GET", "/apis/apps/v1/namespaces/a/deployments?watch=true&fieldSelector=x", true),
            ("GET", "/api/v1/watch/namespaces/a/pods", true),
            ("GET", "/api/v1/watch/namespaces/a/pods/p", true),
            ("GET", "/api/v1/pods", false),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true", false),
            ("GET", "/api/v1/namespaces/a/pods/p/log?watch=true", false),
            ("GET", "/api/v1/namespaces/a/services/s/proxy/x?watch=1", false),
            ("GET", "/api/v1/namespaces/a/pods/p?watch=1", false),
            ("GET", "/version?watch=1", false),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?watch=1", false),
        ] {
            let path = RequestPath::read(target.as_bytes()).expect(target);
            assert_eq!(path.watches_objects(method), expected, "{method} {target}");
        }
    }

    #[test]
    fn only_a_watch_of_objects_and_a_followed_log_are_long() {
        for (method, target, expected) in [
            ("GET", "/api/v1/pods?watch=1", true),
            ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp&watch=true", true),
            ("GET", "/api/v1/watch/namespaces/a/pods/p", true),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true", true),
            ("GET", "/api/v1/namespaces/a/pods/p?watch=1", false),
            ("GET", "/api/v1/namespaces/a?watch=1", false),
            ("GET", "/api/v1/namespaces/a/pods/p/log?watch=1", false),
            ("GET", "/api/v1/namespaces/a/pods?follow=true", false),
            ("GET", "/api/v1/namespaces/a/services/s/proxy/x?watch=1&follow=true", false),
            ("GET", "/version?watch=1", false),
            ("HEAD", "/api/v1/pods?watch=1", false),
            ("POST", "/api/v1/namespaces/a/pods?watch=1", false),
            ("DELETE", "/api/v1/namespaces/a/pods?watch=1", false),
            ("POST", "/api/v1/namespaces/a/pods/p/log?follow=true", false),
        ] {
            let path = RequestPath::read(target.as_bytes()).expect(target);
            assert_eq!(path.is_long(method), expected, "{method} {target}");
        }
    }

    #[test]
    fn a_query_asks_for_a_watch_as_the_server_reads_it() {
        for (query, expected) in [
            ("watch", true),
            ("watch=", true),
            ("watch=no", true),
            ("w%61tch=1", true),
            ("watch=%31", true),
            ("limit=1&watch=true&watch=0", true),
            ("watch=0;&watch=1", true),
            ("watch=%zz&watch=1", true),
            ("watch=0", false),
            ("watch=False", false),
            ("watch=%30", false),
            ("watch=0&watch=1", false),
            ("watch=1;", false),
            ("Watch=1", false),
            ("labelSelector=watch%3D1", false),
            ("", false),
        ] {
            let target = format!("/api/v1/pods?{query}");
            let path = RequestPath::read(target.as_bytes()).expect(&target);
            assert_eq!(path.watches_objects("GET"), expected, "{query}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for target in [
            "",
            "api/v1",
            "//evil/api",
            "http://h/api",
            "/api//v1",
            "/api/%2Fv1",
            "/api/../v1",
            "/api/%2e%2E/v1",
            "/api/%252e%252e/v1",
            "/api/.%2e/v1",
            "/api/v1%00",
            "/api/v1%0a",
            "/api/v1\n",
            "/api/v1 x",
            "/api/%zz",
            "/api/%2",
            "/api/v1#x",
            "/api\\v1",
            "/api/%5c..%5cv1",
            "/api/%ff",
        ] {
            assert!(RequestPath::read(target.as_bytes()).is_err(), "{target:?}");
        }
        assert!(RequestPath::read(format!("/{}", "x".repeat(MAX_TARGET_BYTES)).as_bytes()).is_err());
        assert!(RequestPath::read(b"/api/v1/namespaces/a/configmaps/x..y?labelSelector=a%2F..%2Fb").is_ok());
    }

    /// Targets on which the code decides, in pieces.
    const PIECES: [&str; 24] = [
        "/api",
        "/apis",
        "/v1",
        "/apps",
        "/namespaces",
        "/a",
        "/pods",
        "/exec",
        "/proxy",
        "/token",
        "/serviceaccounts",
        "/watch",
        "/",
        "%2F",
        "%2e",
        "%252e",
        "..",
        "%5c",
        "?watch=1",
        "&follow=true",
        "%00",
        "#",
        "\\",
        "%",
    ];

    proptest! {
        #[test]
        fn any_pieces_are_read_as_the_server_reads_them_or_refused(
            pieces in proptest::collection::vec(0..PIECES.len(), 0..14),
        ) {
            let target: String = pieces.iter().map(|at| PIECES[*at]).collect();
            if let Ok(read) = RequestPath::read(target.as_bytes()) {
                let path = target.split('?').next().unwrap_or_default();
                let once: Vec<u8> = percent_decode(path.as_bytes()).collect();
                let segments: Vec<_> = once.split(|byte| *byte == b'/').collect();
                prop_assert!(!segments.iter().any(|one| *one == b"." || *one == b".."), "{target}");
                prop_assert!(!segments[1..].iter().rev().skip(1).any(|one| one.is_empty()), "{target}");
                let connects = ["exec", "proxy", "token"].iter().any(|word| read.subresource.as_deref() == Some(word));
                if read.resource.as_deref() == Some("pods") && connects && read.subresource.as_deref() != Some("token") {
                    prop_assert_eq!(read.class("GET"), Class::Connect, "{}", target);
                }
            }
        }

        #[test]
        fn encoding_letters_changes_neither_class_nor_names(mask in any::<u64>(), method in 0_usize..3) {
            for target in [
                "/api/v1/namespaces/a/pods/p/exec",
                "/api/v1/namespaces/a/configmaps/c",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "/api/v1/proxy/namespaces/a/pods/p",
            ] {
                let encoded: String = target.bytes().enumerate().map(|(at, byte)| {
                    let is_encoded = byte != b'/' && mask >> (at % 64) & 1 == 1;
                    if is_encoded { format!("%{byte:02x}") } else { char::from(byte).to_string() }
                }).collect();
                let (plain, read) = (RequestPath::read(target.as_bytes()), RequestPath::read(encoded.as_bytes()));
                prop_assert_eq!(&plain, &read);
                let method = ["GET", "POST", "DELETE"][method];
                prop_assert_eq!(plain.map(|path| path.class(method)), read.map(|path| path.class(method)));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(target in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(read) = RequestPath::read(&target) {
                let parts = [&read.namespace, &read.resource, &read.name, &read.subresource];
                prop_assert!(parts.into_iter().flatten().all(|part| part != ".." && part != "." && !part.contains('/')));
            }
        }
    }
}
