//! The file as a tree: parsed, and for the agent also changed and written again. Texts stay as they were written.
//!
//! The tree is built from parser events so that YAML features a kubeconfig does not need are refused where they
//! occur: anchors and aliases, tags, merge keys, second documents, duplicate keys, deep nesting. Messages are written
//! here and contain lines and columns; the parser's own text is never passed on.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::fmt::Write;

use secrecy::zeroize::{Zeroize, Zeroizing};
use serde_saphyr::granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, StrInput};

use crate::kubeconfig::KubeconfigError;

pub(super) const MAX_BYTES: usize = 256 * 1024;
const MAX_DEPTH: usize = 32;

pub(super) const TOO_LARGE_REMEDY: &str =
    "give at most 256 KiB, such as `kubectl config view --raw --minify` prints for one context";
pub(super) const FORMAT_REMEDY: &str = "give a kubeconfig as `kubectl config view --raw` prints it";

/// A text of the file, wiped when dropped if it is a copy.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Text<'a>(Cow<'a, str>);

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
pub enum DocumentNode<'a> {
    /// A scalar.
    Scalar {
        /// Its text.
        text: Text<'a>,
        /// Whether it was unquoted, and so may be a null, a boolean or a number.
        plain: bool,
    },
    /// A sequence.
    List(Vec<DocumentNode<'a>>),
    /// A mapping. Its keys are unique.
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
    if is_utf_16(bytes) {
        return refuse("is in UTF-16", "save it as UTF-8");
    }
    if bytes.contains(&0) {
        return refuse("holds a NUL, so it is no text", FORMAT_REMEDY);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(_) => refuse("is not UTF-8", "save it as UTF-8"),
    }
}

/// Whether a text is in UTF-16, as the `>` of PowerShell writes it: by its byte order mark, or by the halves of its first
/// letters, of which one is 0.
fn is_utf_16(bytes: &[u8]) -> bool {
    matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..])
        || matches!(bytes, [one, 0, two, 0, ..] | [0, one, 0, two, ..] if *one != 0 && *two != 0)
}

/// Parses the single document in a text that is not empty: others are comments, or nothing between two `---`.
pub(super) fn read(text: &str) -> Result<DocumentNode<'_>, KubeconfigError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = DocumentReader(Parser::new_from_str_with_options(text, options));
    let mut root = None;
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
            (Event::StreamEnd, _) => {
                return root.ok_or_else(|| KubeconfigError::new("kubeconfig", "is empty", FORMAT_REMEDY));
            }
            (event, at) => match reader.node(event, at, 1)? {
                node if node.is_null() => {}
                _ if root.is_some() => {
                    return Err(at.refuse("a second document starts", "give one document"));
                }
                node => root = Some(node),
            },
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

struct DocumentReader<'a>(Parser<'a, StrInput<'a>>);

impl<'a> DocumentReader<'a> {
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

impl DocumentNode<'_> {
    /// Reads one document to be changed, which may be larger than what is vetted. `None` for whatever vetting refuses
    /// anyway: it has the words for it.
    pub fn read(bytes: &[u8]) -> Option<DocumentNode<'static>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Some(read(text).ok()?.into_owned())
    }

    /// What is under a key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.get(key)
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Map(entries) = self else { return None };
        entries.get_mut(key)
    }

    /// The text under a key; `None` for an empty one and for null.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            node @ Self::Scalar { text, .. } if !text.as_str().is_empty() && !node.is_null() => {
                Some(text.as_str())
            }
            _ => None,
        }
    }

    /// Whether there is anything under a key, null aside.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|node| !node.is_null())
    }

    /// The body of the entry of this name in a list, such as `users`.
    pub fn named(&self, list: &str, name: &str, body: &str) -> Option<&Self> {
        let Self::List(items) = self.get(list)? else { return None };
        items.iter().find(|item| item.text("name") == Some(name))?.get(body)
    }

    /// As [`DocumentNode::named`], to be changed.
    pub fn named_mut(&mut self, list: &str, name: &str, body: &str) -> Option<&mut Self> {
        let Self::List(items) = self.get_mut(list)? else { return None };
        items.iter_mut().find(|item| item.text("name") == Some(name))?.get_mut(body)
    }

    /// Leaves only the entries of this name in a list.
    pub fn keep(&mut self, list: &str, name: &str) {
        if let Some(Self::List(items)) = self.get_mut(list) {
            items.retain(|item| item.text("name") == Some(name));
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        if let Self::Map(entries) = self {
            entries.remove(key);
        }
    }

    /// Puts a text under a key.
    pub fn set(&mut self, key: &str, text: String) {
        if let Self::Map(entries) = self {
            entries.insert(key.to_owned().into(), Self::Scalar { text: text.into(), plain: false });
        }
    }

    /// The tree as JSON, which is YAML. What stood without quotes and may be no text still does.
    pub fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let mut out = String::new();
        self.write(&mut out);
        Zeroizing::new(out.into_bytes())
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Scalar { text, plain: true } if text.as_str().is_empty() => out.push('~'),
            Self::Scalar { text, plain: true } if is_bare(text.as_str()) => out.push_str(text.as_str()),
            Self::Scalar { text, .. } => quote(text.as_str(), out),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (at, (key, node)) in entries.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    quote(key.as_str(), out);
                    out.push(':');
                    // A bare value must not touch the colon.
                    out.push(' ');
                    node.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// What may be null, a boolean or a number consists of these alone, and so do many words.
fn is_bare(text: &str) -> bool {
    text == "~"
        || (text.starts_with(|first: char| first.is_ascii_alphanumeric() || matches!(first, '.' | '+'))
            || text
                .strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')))
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-'))
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            _ if letter.is_control() || matches!(letter, '\u{feff}' | '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::vet;

    #[test]
    fn what_is_refused_where_it_stands_in_a_file_is_not_changed_either() {
        for hostile in [
            "kind: Config\n<<: {users: []}\n",
            "kind: &a Config\n",
            "kind: !!str Config\n",
            "kind: Config\nkind: Config\n",
            "kind: Config\n---\nkind: Config\n",
            "[kind]: Config\n",
            "kind: [Config\n",
            "",
        ] {
            assert!(DocumentNode::read(hostile.as_bytes()).is_none(), "{hostile}");
            assert!(vet(hostile.as_bytes(), None).is_err(), "{hostile}");
        }
    }

    #[test]
    fn utf_16_is_named_and_documents_that_are_empty_are_dropped() {
        let file = "apiVersion: v1\nkind: Config\n";
        let utf_16 = |order: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
            format!("{mark}{file}").encode_utf16().flat_map(order).collect()
        };
        for mark in ["\u{feff}", ""] {
            for bytes in [utf_16(u16::to_le_bytes, mark), utf_16(u16::to_be_bytes, mark)] {
                let said = vet(&bytes, None).expect_err("UTF-16").to_string();
                assert_eq!(said, "kubeconfig is in UTF-16; save it as UTF-8");
            }
        }
        for text in [
            format!("---\n{file}"),
            format!("{file}---\n"),
            format!("---\n---\n{file}"),
            format!("\u{feff}# a comment\n---\n{file}---\n# another\n...\n"),
        ] {
            let read = DocumentNode::read(text.as_bytes());
            assert_eq!(read.as_ref().and_then(|root| root.text("kind")), Some("Config"), "{text}");
        }
    }

    #[test]
    fn what_is_not_changed_reads_back_as_what_it_was() {
        let file = "a: {b: 'true', c: true, d: ~, e: \"x\\ny\", f: [1, '1', \"-\"]}\n";
        let read_back = |bytes: &[u8]| {
            String::from_utf8_lossy(&DocumentNode::read(bytes).expect("a file").to_json()).into_owned()
        };
        let written = read_back(file.as_bytes());
        assert_eq!(written, r#"{"a": {"b": "true","c": true,"d": ~,"e": "x\u000ay","f": [1,"1","-"]}}"#);
        assert_eq!(read_back(written.as_bytes()), written);
    }
}
