//! Parses the file into a tree.
//!
//! The tree is built from parser events so that YAML features a kubeconfig does not need are refused where they
//! occur: anchors and aliases, tags, merge keys, second documents, duplicate keys, deep nesting. Messages are written
//! here and contain lines and columns; the parser's own text is never passed on.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;

use secrecy::zeroize::Zeroize;
use serde_saphyr::granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, StrInput};

use crate::account::kubeconfig::error::KubeconfigError;

pub(super) const MAX_BYTES: usize = 256 * 1024;
const MAX_DEPTH: usize = 32;

pub(super) const TOO_LARGE_REMEDY: &str =
    "give at most 256 KiB, such as `kubectl config view --raw --minify` prints for one context";
pub(super) const FORMAT_REMEDY: &str = "give a kubeconfig as `kubectl config view --raw` prints it";

/// A text of the file, wiped when dropped if it is a copy.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    fn into_owned(mut self) -> Text<'static> {
        std::mem::take(&mut self.0).into_owned().into()
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl Drop for Text<'_> {
    fn drop(&mut self) {
        if let Cow::Owned(copy) = &mut self.0 {
            copy.zeroize();
        }
    }
}

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A part of the file.
pub(crate) enum DocumentNode<'a> {
    /// A text, and whether it was unquoted and so may be a null, a boolean or a number.
    Scalar {
        text: Text<'a>,
        plain: bool,
    },
    List(Vec<DocumentNode<'a>>),
    Map(BTreeMap<Text<'a>, DocumentNode<'a>>),
}

impl DocumentNode<'_> {
    /// The same, without the text that it was read from.
    pub(super) fn into_owned(self) -> DocumentNode<'static> {
        match self {
            Self::Scalar { text, plain } => DocumentNode::Scalar { text: text.into_owned(), plain },
            Self::List(items) => DocumentNode::List(items.into_iter().map(Self::into_owned).collect()),
            Self::Map(entries) => DocumentNode::Map(
                entries.into_iter().map(|(key, node)| (key.into_owned(), node.into_owned())).collect(),
            ),
        }
    }
}

/// Decodes the file: at most 256 KiB of UTF-8 without NUL. A byte order mark is dropped.
pub(super) fn decode(bytes: &[u8]) -> Result<&str, KubeconfigError> {
    let refuse = |problem, remedy: &'static str| Err(KubeconfigError::new("kubeconfig", problem, remedy));
    if bytes.len() > MAX_BYTES {
        return refuse("is larger than 256 KiB", TOO_LARGE_REMEDY);
    }
    if bytes.contains(&0) {
        return refuse("holds a NUL, so it is no text", FORMAT_REMEDY);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(_) => refuse("is not UTF-8", "save it as UTF-8"),
    }
}

/// Parses the single document in a text.
pub(super) fn read(text: &str) -> Result<DocumentNode<'_>, KubeconfigError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader(Parser::new_from_str_with_options(text, options));
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd, _) => {
                return Err(KubeconfigError::new("kubeconfig", "is empty", FORMAT_REMEDY));
            }
            (event, at) => {
                let root = reader.node(event, at, 1)?;
                loop {
                    match reader.next()? {
                        (Event::StreamEnd, _) => return Ok(root),
                        (Event::DocumentStart(..), at) => {
                            return Err(at.refuse("a second document starts", "give one document"));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct NodePosition {
    line: usize,
    column: usize,
}

impl NodePosition {
    fn refuse(self, problem: &str, remedy: &'static str) -> KubeconfigError {
        let problem = format!("cannot be taken: at line {}, column {}, {problem}", self.line, self.column);
        KubeconfigError::new("kubeconfig", problem, remedy)
    }

    fn too_deep(self) -> KubeconfigError {
        self.refuse("lists and mappings are nested more than 32 deep", FORMAT_REMEDY)
    }

    fn alias(self) -> KubeconfigError {
        self.refuse("there is an anchor or an alias", "write the value out at each place")
    }

    fn tag(self) -> KubeconfigError {
        self.refuse("there is a tag", "leave tags out, and put texts in quotes")
    }
}

struct Reader<'a>(Parser<'a, StrInput<'a>>);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, NodePosition), KubeconfigError> {
        match self.0.next_event() {
            Some(Ok((event, span))) => {
                Ok((event, NodePosition { line: span.start.line(), column: span.start.col() + 1 }))
            }
            Some(Err(error)) => {
                let at = NodePosition { line: error.marker().line(), column: error.marker().col() + 1 };
                Err(match error.kind() {
                    ErrorKind::RecursionLimitExceeded => at.too_deep(),
                    ErrorKind::UnknownAnchor => at.alias(),
                    ErrorKind::UndeclaredTagHandle => at.tag(),
                    _ => at.refuse("it is not YAML", FORMAT_REMEDY),
                })
            }
            None => Err(KubeconfigError::new("kubeconfig", "ends early", FORMAT_REMEDY)),
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        at: NodePosition,
        depth: usize,
    ) -> Result<DocumentNode<'a>, KubeconfigError> {
        let (anchor, tagged) = match &event {
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(_, anchor, tag)
            | Event::MappingStart(_, anchor, tag) => (*anchor, tag.is_some()),
            Event::Alias(_) => return Err(at.alias()),
            _ => return Err(at.refuse("it is not YAML", FORMAT_REMEDY)),
        };
        if anchor != 0 {
            return Err(at.alias());
        }
        if tagged {
            return Err(at.tag());
        }
        match event {
            Event::Scalar(text, style, ..) => {
                Ok(DocumentNode::Scalar { text: Text(text), plain: style == ScalarStyle::Plain })
            }
            _ if depth > MAX_DEPTH => Err(at.too_deep()),
            Event::SequenceStart(..) => self.list(depth).map(DocumentNode::List),
            _ => self.map(depth).map(DocumentNode::Map),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<DocumentNode<'a>>, KubeconfigError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<BTreeMap<Text<'a>, DocumentNode<'a>>, KubeconfigError> {
        let mut entries = BTreeMap::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let DocumentNode::Scalar { text: key, plain } = self.node(event, at, depth + 1)? else {
                return Err(at.refuse("a key is a list or a mapping", "use plain names as keys"));
            };
            if plain && key.0 == "<<" {
                return Err(at.refuse("there is a merge key", "write the keys out"));
            }
            if entries.contains_key(&key) {
                return Err(at.refuse(&duplicate(&key.0), "keep one of them"));
            }
            let (event, at) = self.next()?;
            let value = self.node(event, at, depth + 1)?;
            entries.insert(key, value);
        }
    }
}

/// Names a duplicate key only if it is a known key of kubeconfigs: an indentation or colon mistake can turn any text
/// into a key.
fn duplicate(key: &str) -> String {
    const KNOWN: &str = "apiVersion kind preferences clusters users contexts current-context extensions name cluster \
                         server tls-server-name insecure-skip-tls-verify certificate-authority \
                         certificate-authority-data proxy-url disable-compression user client-certificate \
                         client-certificate-data client-key client-key-data token tokenFile as as-uid as-groups \
                         as-user-extra username password auth-provider exec context namespace";
    match KNOWN.split_whitespace().find(|known| *known == key) {
        Some(known) => format!("the key {known} is there a second time"),
        None => "a key is there a second time".to_owned(),
    }
}
