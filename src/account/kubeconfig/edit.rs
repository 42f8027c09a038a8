//! A kubeconfig that is changed and written again. Texts stay as they were written.

use std::fmt::Write;

use secrecy::zeroize::Zeroizing;

use crate::account::kubeconfig::document::{self, DocumentNode};

/// Reads one document to be changed, which may be larger than what is vetted. `None` for whatever vetting refuses anyway:
/// it has the words for it.
pub(crate) fn read(bytes: &[u8]) -> Option<DocumentNode<'static>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Some(document::read(text).ok()?.into_owned())
}

impl DocumentNode<'_> {
    /// What is under a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.get(key)
    }

    fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Map(entries) = self else { return None };
        entries.get_mut(key)
    }

    /// The text under a key; `None` for an empty one and for null.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            node @ Self::Scalar { text, .. } if !text.as_str().is_empty() && !node.is_null() => {
                Some(text.as_str())
            }
            _ => None,
        }
    }

    /// Whether there is anything under a key, null aside.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|node| !node.is_null())
    }

    /// The body of the entry of this name in a list, such as `users`.
    pub(crate) fn named(&self, list: &str, name: &str, body: &str) -> Option<&Self> {
        let Self::List(items) = self.get(list)? else { return None };
        items.iter().find(|item| item.text("name") == Some(name))?.get(body)
    }

    /// As [`DocumentNode::named`], to be changed.
    pub(crate) fn named_mut(&mut self, list: &str, name: &str, body: &str) -> Option<&mut Self> {
        let Self::List(items) = self.get_mut(list)? else { return None };
        items.iter_mut().find(|item| item.text("name") == Some(name))?.get_mut(body)
    }

    /// Leaves only the entries of this name in a list.
    pub(crate) fn keep(&mut self, list: &str, name: &str) {
        if let Some(Self::List(items)) = self.get_mut(list) {
            items.retain(|item| item.text("name") == Some(name));
        }
    }

    /// Takes a key out.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Self::Map(entries) = self {
            entries.remove(key);
        }
    }

    /// Puts a text under a key.
    pub(crate) fn set(&mut self, key: &str, text: String) {
        if let Self::Map(entries) = self {
            entries.insert(key.to_owned().into(), Self::Scalar { text: text.into(), plain: false });
        }
    }

    /// The tree as JSON, which is YAML. What stood without quotes and may be no text still does.
    pub(crate) fn to_json(&self) -> Zeroizing<Vec<u8>> {
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
    use crate::account::kubeconfig::vet;

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
            assert!(read(hostile.as_bytes()).is_none(), "{hostile}");
            assert!(vet(hostile.as_bytes(), None).is_err(), "{hostile}");
        }
    }

    #[test]
    fn what_is_not_changed_reads_back_as_what_it_was() {
        let file = "a: {b: 'true', c: true, d: ~, e: \"x\\ny\", f: [1, '1', \"-\"]}\n";
        let read_back =
            |bytes: &[u8]| String::from_utf8_lossy(&read(bytes).expect("a file").to_json()).into_owned();
        let written = read_back(file.as_bytes());
        assert_eq!(written, r#"{"a": {"b": "true","c": true,"d": ~,"e": "x\u000ay","f": [1,"1","-"]}}"#);
        assert_eq!(read_back(written.as_bytes()), written);
    }
}
