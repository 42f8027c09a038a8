//! Tokens: their form, their sources, and when they are replaced.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tracing::field::{Field, Visit};
use tracing::span;

use super::bearer::BearerTokenError;
use super::*;
use crate::settings::{TokenCommandSettings, TokenFormat};

/// The text of every event and span of this thread, of every library and at every level.
#[derive(Clone, Default)]
pub(crate) struct LogText(Arc<parking_lot::Mutex<String>>);

/// A second subscriber. While there is just one, the first thread that comes to an event decides for all threads whether
/// it is of interest, and most tests have no subscriber.
static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| tracing::Dispatch::new(LogText::default()));

impl LogText {
    /// Begins to record, until the guard is dropped.
    pub(crate) fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Self::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().clone()
    }

    fn record(&self, record: impl FnOnce(&mut FieldText)) {
        let mut text = FieldText(String::new());
        record(&mut text);
        *self.0.lock() += &format!("{}\n", text.0);
    }
}

struct FieldText(String);

impl Visit for FieldText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for LogText {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.record(|text| span.record(text));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        LogText::record(self, |text| values.record(text));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        LogText::record(self, |text| event.record(text));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A JWT, signed by nobody, that was issued this long ago and expires after this time, in seconds.
pub(crate) fn jwt(issued: i64, expires: i64) -> String {
    let now = Timestamp::now().as_second();
    with_claims(&format!(r#"{{"iat":{},"exp":{}}}"#, now - issued, now + expires))
}

fn with_claims(claims: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2lnbmF0dXJl", part(r#"{"alg":"none"}"#), part(claims))
}

/// A source that runs this script of the shell.
pub(crate) fn script(text: &str, format: TokenFormat) -> TokenSettings {
    TokenSettings::Command(TokenCommandSettings {
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), text.to_owned()],
        format,
        refresh: Duration::ZERO,
    })
}

async fn problem(settings: TokenSettings) -> String {
    HubToken::read(settings).await.map_or_else(|error| chain(&error), |_| "none".to_owned())
}

fn value(token: &HubToken) -> String {
    token.current().1.expect("a token").expose().to_owned()
}

#[test]
fn a_token_is_visible_ascii_and_white_space_around_it_does_not_count() {
    let read = |bytes: &[u8]| BearerToken::parse(bytes).map(|token| token.expose().to_owned());
    let longest = "x".repeat(16 * 1024);
    for (bytes, token) in
        [("t", "t"), (" t\r\n", "t"), ("\n\tA.b-c_d~e+f/g=\n", "A.b-c_d~e+f/g="), (&longest, &longest)]
    {
        assert_eq!(read(bytes.as_bytes()).as_deref(), Ok(token), "{bytes:?}");
    }
    let too_long = [longest.as_bytes(), b"x"].concat();
    for (bytes, error) in [
        (&b""[..], BearerTokenError::Empty),
        (b" \n", BearerTokenError::Empty),
        (b"a b", BearerTokenError::NotVisible),
        (b"a\nb", BearerTokenError::NotVisible),
        (b"a\0", BearerTokenError::NotVisible),
        ("tök".as_bytes(), BearerTokenError::NotVisible),
        (&[0xff, 0xfe], BearerTokenError::NotVisible),
        (&too_long, BearerTokenError::TooLong),
    ] {
        assert_eq!(read(bytes), Err(error), "{bytes:?}");
    }
    let token = BearerToken::parse(b"CANARY").expect("a token");
    let header = token.header().expect("a value");
    assert_eq!(header.as_bytes(), b"Bearer CANARY");
    assert!(!format!("{token:?} {header:?}").contains("CANARY"));
}

#[test]
fn the_life_of_a_jwt_is_read_and_other_tokens_have_none() {
    let life = |claims: &str| BearerToken::parse(with_claims(claims).as_bytes()).expect(claims).life();
    let seconds = |life: TokenLife| [life.issued, life.expires].map(|at| at.map(Timestamp::as_second));
    for (claims, expected) in [
        (r#"{"iat":100,"exp":200}"#, [Some(100), Some(200)]),
        (r#"{"iat":100.5,"exp":2e2}"#, [Some(100), Some(200)]),
        (r#"{"exp":200}"#, [None, Some(200)]),
        (r#"{"iat":100}"#, [Some(100), None]),
        (r#"{"iat":300,"exp":200}"#, [None, Some(200)]),
        (r#"{"iat":-1e300,"exp":1e300}"#, [None, None]),
        (r#"{"exp":"200"}"#, [None, None]),
        ("[]", [None, None]),
        ("no JSON", [None, None]),
    ] {
        assert_eq!(seconds(life(claims)), expected, "{claims}");
    }
    for opaque in ["hunter2", "a.b", "a.b.c", "a.b.c.d", "..", "a.!.c"] {
        let token = BearerToken::parse(opaque.as_bytes()).expect(opaque);
        assert_eq!(token.life(), TokenLife::default(), "{opaque}");
    }
}

#[tokio::test]
async fn sources_that_cannot_be_honoured_name_setting_and_remedy_and_never_the_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        TokenSettings::File(path)
    };
    let command = |command: &str| {
        let TokenSettings::Command(one) = script("", TokenFormat::Raw) else { unreachable!("a command") };
        TokenSettings::Command(TokenCommandSettings { command: command.to_owned(), ..one })
    };
    let absent = TokenSettings::File("/absent/token".into());
    let not_executable = folder.path().join("empty").display().to_string();
    let long = "x".repeat(20_000);
    let (raw, json) = (TokenFormat::Raw, TokenFormat::Json);
    for (settings, setting, part) in [
        (absent, "tokenFile", "/absent/token cannot be read"),
        (TokenSettings::File(folder.path().into()), "tokenFile", "no regular file"),
        (file("empty", b"\n"), "tokenFile", "there is no token in it"),
        (file("two", b"CANARY CANARY"), "tokenFile", "has a blank"),
        (file("long", long.as_bytes()), "tokenFile", "more than 16384 bytes"),
        (file("huge", &vec![b'x'; 70_000]), "tokenFile", "larger than 65536 bytes"),
        (command("no-such-program"), "tokenCommand.command", "no program \"no-such-program\""),
        (command("/no/such/program"), "tokenCommand.command", "in the agent's PATH, or the path of one"),
        (command(&not_executable), "tokenCommand.command", "cannot be executed"),
        (script("", raw), "tokenCommand.command", "there is no token in it"),
        (script("echo CANARY CANARY", raw), "tokenCommand.command", "has a blank"),
        (script("echo CANARY; echo CANARY >&2", json), "tokenCommand.command", "format: raw"),
        (script(r#"echo '{"token":["CANARY"]}'"#, json), "tokenCommand.command", "no JSON object"),
        (script(r#"echo '{"token":""}'"#, json), "tokenCommand.command", "there is no token in it"),
        (script("yes CANARY", raw), "tokenCommand.command", "more than 65536 bytes"),
    ] {
        let problem = problem(settings.clone()).await;
        let begin = format!("`clouddriver.auth.{setting}` cannot be honoured; ");
        assert!(problem.starts_with(&begin) && problem.contains(part), "{settings:?}: {problem}");
        assert!(!problem.contains("CANARY"), "{problem}");
    }
    for (settings, expected) in [
        (file("good", b" t0ken\n"), "t0ken"),
        (script("echo t0ken; echo noise >&2", raw), "t0ken"),
        (script(r#"echo '{"expires": 1, "token": " t0ken "}'"#, json), "t0ken"),
        (TokenSettings::Fixed(serde_json::from_value(serde_json::json!("t0ken")).expect("a token")), "t0ken"),
    ] {
        let token = HubToken::read(settings.clone()).await.expect("a token");
        assert_eq!(value(&token), expected, "{settings:?}");
        assert!(!format!("{token:?}").contains("t0ken"), "{token:?}");
    }
}

#[tokio::test]
async fn a_command_that_fails_is_run_again_and_nothing_is_dialled_until_it_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, logging) = LogText::begin();
    let path = folder.path().join("token").display().to_string();
    let settings = script(&format!("echo CANARY >&2; cat {path} || exit 7"), TokenFormat::Raw);
    let token = HubToken::read(settings).await.expect("it may succeed later");
    for _ in 0..3 {
        let problem = token.prepare().await.expect_err("there is none");
        let problem = chain(&problem);
        assert!(
            problem.starts_with("`clouddriver.auth.tokenCommand.command` has given no token yet"),
            "{problem}"
        );
        assert!(problem.ends_with("exit code 7") && problem.contains("run it by hand"), "{problem}");
    }
    assert!(token.header().is_none());
    fs::write(&path, "CANARY").expect("written");
    token.prepare().await.expect("there is one");
    assert_eq!(value(&token), "CANARY");
    drop(logging);
    let log = log.text();
    assert!(log.matches("exit code 7").count() == 1 && log.contains("has a token again"), "{log}");
    assert!(!log.contains("CANARY"), "{log}");
}

#[tokio::test]
async fn a_command_without_an_end_is_given_its_time() {
    // Its time passes as soon as nothing but the program is waited for.
    tokio::time::pause();
    let token = HubToken::read(script("sleep 1000", TokenFormat::Raw)).await.expect("it may end later");
    let problem = chain(&token.prepare().await.expect_err("there is none"));
    assert!(problem.ends_with("did not end within 30 s"), "{problem}");
}

/// Swaps the file of a token behind links, as a mounted one is.
pub(crate) struct MountedToken(tempfile::TempDir);

impl MountedToken {
    pub(crate) fn new(token: &str) -> Self {
        let mounted = Self(tempfile::tempdir().expect("a folder"));
        std::os::unix::fs::symlink("..data/token", mounted.path()).expect("a link");
        mounted.swap("first", token);
        mounted
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("token")
    }

    pub(crate) fn source(&self) -> TokenSettings {
        TokenSettings::File(self.path())
    }

    pub(crate) fn swap(&self, version: &str, token: &str) {
        let at = |name: &str| self.0.path().join(name);
        fs::create_dir(at(version)).expect("a folder");
        fs::write(at(version).join("token"), token).expect("written");
        std::os::unix::fs::symlink(Path::new(version), at("..new")).expect("a link");
        fs::rename(at("..new"), at("..data")).expect("renamed");
    }
}

#[tokio::test]
async fn a_file_that_is_swapped_gives_another_token_and_one_that_is_gone_leaves_the_last() {
    let mounted = MountedToken::new(&jwt(0, 3600));
    let token = HubToken::read(mounted.source()).await.expect("a token");
    let (first, number) = (value(&token), token.number());
    token.prepare().await.expect("it is valid");
    assert_eq!((value(&token), *number.borrow()), (first.clone(), 1), "the same");
    mounted.swap("second", "other");
    token.prepare().await.expect("it is valid");
    assert_eq!((value(&token), *number.borrow()), ("other".to_owned(), 2));
    fs::remove_file(mounted.path()).expect("removed");
    token.prepare().await.expect("the last one has no end");
    assert_eq!((value(&token), *number.borrow()), ("other".to_owned(), 2));
    fs::write(mounted.path(), jwt(100, -1)).expect("written");
    let problem = chain(&token.prepare().await.expect_err("it has expired"));
    assert!(problem.starts_with("the token of `clouddriver.auth.tokenFile` expired at "), "{problem}");
    fs::remove_file(mounted.path()).expect("removed");
    let problem = chain(&token.prepare().await.expect_err("it has expired"));
    assert!(problem.contains("cannot be read"), "{problem}");
}

#[tokio::test]
async fn a_token_of_the_settings_that_has_expired_is_named() {
    let text = jwt(100, -1);
    let token = TokenSettings::Fixed(serde_json::from_value(serde_json::json!(text)).expect("a token"));
    let token = HubToken::read(token).await.expect("it is a token");
    let problem = chain(&token.prepare().await.expect_err("it has expired"));
    assert!(
        problem.contains("`clouddriver.auth.token` expired at") && problem.contains("set it to another"),
        "{problem}"
    );
    assert!(!problem.contains(&text), "{problem}");
}

/// A command that prints a line of this file.
async fn of_command(path: &Path, refresh: Duration) -> Arc<HubToken> {
    let source = script(&format!("cat {}", path.display()), TokenFormat::Raw);
    let TokenSettings::Command(one) = source else { unreachable!("a command") };
    HubToken::read(TokenSettings::Command(TokenCommandSettings { refresh, ..one })).await.expect("a token")
}

#[tokio::test]
async fn a_command_is_due_when_a_fifth_of_the_life_is_left() {
    const PACE: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    fs::write(&path, jwt(0, 1000)).expect("written");
    let token = of_command(&path, Duration::ZERO).await;
    tokio::time::pause();
    assert_eq!(token.left_until_due(PACE).await, Some(MAX_CLOCK_INTERVAL));
    tokio::time::advance(Duration::from_secs(795)).await;
    let left = token.left_until_due(PACE).await.expect("not yet");
    assert!(left <= Duration::from_secs(6), "{left:?}");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(token.left_until_due(PACE).await, None);
    // It prints the same one again: it is not run without a pause.
    tokio::time::resume();
    let number = token.number();
    assert_eq!(token.look(PACE).await, AttemptOutcome::Again(Vec::new(), PACE));
    assert_eq!(*number.borrow(), 1);
    let left = token.left_until_due(PACE).await.expect("it was run just now");
    assert!(left <= PACE && left > PACE / 2, "{left:?}");
    fs::write(&path, "another").expect("written");
    tokio::time::pause();
    tokio::time::advance(PACE).await;
    tokio::time::resume();
    token.look(PACE).await;
    assert_eq!((value(&token).as_str(), *number.borrow()), ("another", 2));
}

#[tokio::test]
async fn a_command_is_due_at_its_interval_whatever_the_life() {
    const PACE: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    for text in ["opaque".to_owned(), jwt(0, 36_000)] {
        fs::write(&path, text).expect("written");
        let token = of_command(&path, Duration::from_secs(300)).await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(290)).await;
        let left = token.left_until_due(PACE).await.expect("not yet");
        assert!(left <= Duration::from_secs(10), "{left:?}");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(token.left_until_due(PACE).await, None);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_command_that_fails_later_leaves_the_last_token_until_it_expires() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    fs::write(&path, jwt(0, 1000)).expect("written");
    let token = of_command(&path, Duration::ZERO).await;
    let first = value(&token);
    fs::remove_file(&path).expect("removed");
    token.prepare().await.expect("it is valid");
    token.refused();
    token.prepare().await.expect("the last one is all there is");
    assert_eq!(value(&token), first);
    let outcome = {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(900)).await;
        tokio::time::resume();
        token.look(Duration::from_secs(10)).await
    };
    assert!(matches!(&outcome, AttemptOutcome::Failed(_, why) if why.contains("exit code")), "{outcome:?}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(101)).await;
    tokio::time::resume();
    let problem = chain(&token.prepare().await.expect_err("it has expired"));
    assert!(problem.contains("expired at") && problem.contains("exit code"), "{problem}");
}

#[tokio::test]
async fn before_a_dial_a_command_is_run_for_a_refused_token_and_for_one_without_an_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    fs::write(&path, jwt(0, 1000)).expect("written");
    let token = of_command(&path, Duration::ZERO).await;
    let first = value(&token);
    fs::write(&path, "endless").expect("written");
    token.prepare().await.expect("it is valid");
    assert_eq!(value(&token), first, "it is not run for each dial");
    token.refused();
    token.prepare().await.expect("it is valid");
    assert_eq!(value(&token), "endless");
    fs::write(&path, "another").expect("written");
    token.prepare().await.expect("it is valid");
    assert_eq!(value(&token), "another");
}
