//! A kubeconfig as a tree that can be modified and written again. Scalars keep their text as written.

use std::fmt::Write;

use granit_parser::{Event, Parser, ScalarStyle, options};
use secrecy::zeroize::Zeroizing;

/// Maximum nesting depth, the same as in vetting.
const MAX_DEPTH: usize = 32;

/// A node of the document; its texts are wiped on drop.
pub(super) enum TreeNode {
    /// A text, and whether it was written without quotes, so that it may be a null, a boolean or a number.
    Scalar {
        text: Zeroizing<String>,
        plain: bool,
    },
    List(Vec<TreeNode>),
    Map(Vec<(Zeroizing<String>, TreeNode)>),
}

/// Parses one document. Returns `None` for anything that vetting refuses anyway, with a better message.
pub(super) fn read(bytes: &[u8]) -> Option<TreeNode> {
    let text = std::str::from_utf8(bytes).ok()?;
    let options = options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut open: Vec<(TreeNode, Option<Zeroizing<String>>)> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str_with_options(text, options) {
        let node = match event.ok()?.0 {
            Event::Scalar(text, style, 0, None) => {
                let text = Zeroizing::new(text.into_owned());
                TreeNode::Scalar { text, plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(_, 0, None) => {
                open.push((TreeNode::List(Vec::new()), None));
                continue;
            }
            Event::MappingStart(_, 0, None) => {
                open.push((TreeNode::Map(Vec::new()), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop()?.0,
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(_) => {
                return None;
            }
            _ => continue,
        };
        match open.last_mut() {
            None if root.is_some() => return None,
            None => root = Some(node),
            Some((TreeNode::List(items), _)) => items.push(node),
            Some((TreeNode::Map(entries), key)) => match (key.take(), node) {
                (Some(key), node) if entries.iter().any(|(known, _)| **known == *key) => {
                    drop(node);
                    return None;
                }
                (Some(key), node) => entries.push((key, node)),
                (None, TreeNode::Scalar { text, .. }) => *key = Some(text),
                (None, _) => return None,
            },
            Some((TreeNode::Scalar { .. }, _)) => return None,
        }
    }
    root
}

impl TreeNode {
    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(known, _)| known.as_str() == key).map(|(_, node)| node)
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter_mut().find(|(known, _)| known.as_str() == key).map(|(_, node)| node)
    }

    /// The text of a key; `None` if it is empty or null.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Self::Scalar { text, plain } if !(text.is_empty() || *plain && is_null(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether a key has a value other than null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|node| !matches!(node, Self::Scalar { text, plain: true } if is_null(text)))
    }

    /// The body of the named entry in a list such as `users`.
    pub(super) fn named(&self, list: &str, name: &str, body: &str) -> Option<&Self> {
        let Self::List(items) = self.get(list)? else { return None };
        items.iter().find(|item| item.text("name") == Some(name))?.get(body)
    }

    /// Like [`TreeNode::named`], but mutable.
    pub(super) fn named_mut(&mut self, list: &str, name: &str, body: &str) -> Option<&mut Self> {
        let Self::List(items) = self.get_mut(list)? else { return None };
        items.iter_mut().find(|item| item.text("name") == Some(name))?.get_mut(body)
    }

    /// Keeps only the entries with this name in a list.
    pub(super) fn keep(&mut self, list: &str, name: &str) {
        if let Some(Self::List(items)) = self.get_mut(list) {
            items.retain(|item| item.text("name") == Some(name));
        }
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &str) {
        if let Self::Map(entries) = self {
            entries.retain(|(known, _)| known.as_str() != key);
        }
    }

    /// Sets the text of a key.
    pub(super) fn set(&mut self, key: &str, text: String) {
        self.remove(key);
        if let Self::Map(entries) = self {
            let node = Self::Scalar { text: Zeroizing::new(text), plain: false };
            entries.push((Zeroizing::new(key.to_owned()), node));
        }
    }

    /// The tree as JSON, which is YAML as well. Unquoted scalars that may not be texts stay unquoted.
    pub(super) fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let mut out = String::new();
        self.write(&mut out);
        Zeroizing::new(out.into_bytes())
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Scalar { text, plain: true } if text.is_empty() => out.push('~'),
            Self::Scalar { text, plain: true } if is_bare(text) => out.push_str(text),
            Self::Scalar { text, .. } => quote(text, out),
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
                    quote(key, out);
                    out.push(':');
                    // An unquoted value must not touch the colon.
                    out.push(' ');
                    node.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Whether a text consists only of characters that occur in nulls, booleans and numbers; many words do too.
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
