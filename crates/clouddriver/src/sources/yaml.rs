//! The documents of a YAML file, with every scalar as it was written.
//!
//! Keys that a mapping has twice are refused, as Spring refuses them. Nesting is bounded, and so is what aliases repeat.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, options};

use super::fields::{ACCOUNT, fold};
use super::snapshot::SourceFault;

/// Maximum nesting depth, aliases included.
const MAX_DEPTH: usize = 64;
/// Maximum that aliases may add, in bytes of text plus [`NODE_BYTES`] per value.
const MAX_REPEATED: usize = 1 << 20;
/// Cost of one value besides its text, in bytes.
const NODE_BYTES: usize = 64;
/// Keys that a message may repeat, besides the fields of accounts. A wrong indentation can turn any text into a key.
const KNOWN_KEYS: &[&str] =
    &["spinnaker", "kubernetes", "accounts", "spring", "server", "provider", "credentials"];

/// A value. Aliases share what they stand for.
#[derive(Clone, Debug)]
pub(super) enum PropertyNode {
    Null,
    Text(String),
    List(Vec<Arc<PropertyNode>>),
    /// With unique keys.
    Map(Vec<(String, Arc<PropertyNode>)>),
}

/// Parses a file. Documents without content are left out.
pub(super) fn documents(file: &str, text: &str) -> Result<Vec<Arc<PropertyNode>>, SourceFault> {
    let at = |line: usize, why: String| SourceFault::File { file: file.to_owned(), line: Some(line), why };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let options = options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut tree = Tree::default();
    for next in Parser::new_from_str_with_options(text, options) {
        // The parser's own words may quote the text.
        let (event, span) = next.map_err(|error| {
            let line = error.marker().line();
            at(line, unreadable(text, line).to_owned())
        })?;
        let line = span.start.line();
        tree.take(event, line).map_err(|why| at(line, why))?;
    }
    Ok(tree.documents)
}

fn unreadable(text: &str, line: usize) -> &'static str {
    let near = text.lines().skip(line.saturating_sub(2)).take(2);
    let tabbed = near.into_iter().any(|line| {
        let indent = line.len() - line.trim_start().len();
        line.get(..indent).is_some_and(|indent| indent.contains('\t'))
    });
    if tabbed {
        "it is not YAML: indent with spaces, not with tabs"
    } else {
        "it is not YAML, or nested too deep: check the indentation, the quotes and the line before"
    }
}

/// A mapping or list that is not complete yet.
struct Open {
    anchor: usize,
    node: UnfinishedNode,
}

enum UnfinishedNode {
    List(Vec<Arc<PropertyNode>>),
    Map {
        entries: Vec<(String, Arc<PropertyNode>)>,
        /// The key whose value comes next.
        key: Option<String>,
        /// Place of each key.
        seen: HashMap<String, usize>,
        /// What `<<` adds.
        merged: Vec<(String, Arc<PropertyNode>)>,
    },
}

#[derive(Default)]
struct Tree {
    open: Vec<Open>,
    /// Value, size in bytes and depth, by anchor.
    anchors: HashMap<usize, (Arc<PropertyNode>, usize, usize)>,
    repeated: usize,
    documents: Vec<Arc<PropertyNode>>,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                let node = match text.as_ref() {
                    "" | "~" | "null" | "Null" | "NULL" if plain => PropertyNode::Null,
                    _ => PropertyNode::Text(text.into_owned()),
                };
                self.attach(Arc::new(node), anchor, line)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(anchor, UnfinishedNode::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let node = UnfinishedNode::Map {
                    entries: Vec::new(),
                    key: None,
                    seen: HashMap::new(),
                    merged: Vec::new(),
                };
                self.begin(anchor, node)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(line),
            Event::Alias(id) => {
                let Some((node, bytes, height)) = self.anchors.get(&id) else {
                    return Err("an alias stands inside its own value".to_owned());
                };
                self.repeated = self.repeated.saturating_add(*bytes);
                if self.repeated > MAX_REPEATED {
                    return Err("aliases repeat more than 1 MiB: write the values out".to_owned());
                }
                if self.open.len() + height > MAX_DEPTH {
                    return Err(format!("lists and mappings are nested more than {MAX_DEPTH} deep"));
                }
                let node = Arc::clone(node);
                self.attach(node, 0, line)
            }
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, anchor: usize, node: UnfinishedNode) -> Result<(), String> {
        if let Some(Open { node: UnfinishedNode::Map { key: None, .. }, .. }) = self.open.last() {
            return Err("a list or mapping stands where a key is expected".to_owned());
        }
        self.open.push(Open { anchor, node });
        Ok(())
    }

    fn end(&mut self, line: usize) -> Result<(), String> {
        let Some(Open { anchor, node }) = self.open.pop() else { return Ok(()) };
        let node = match node {
            UnfinishedNode::List(items) => PropertyNode::List(items),
            UnfinishedNode::Map { mut entries, mut seen, merged, .. } => {
                for (key, value) in merged {
                    if let std::collections::hash_map::Entry::Vacant(place) = seen.entry(key.clone()) {
                        place.insert(line);
                        entries.push((key, value));
                    }
                }
                PropertyNode::Map(entries)
            }
        };
        self.attach(Arc::new(node), anchor, line)
    }

    /// Adds a complete value to its parent.
    fn attach(&mut self, node: Arc<PropertyNode>, anchor: usize, line: usize) -> Result<(), String> {
        if anchor != 0 {
            let (bytes, height) = measure(&node);
            self.anchors.insert(anchor, (Arc::clone(&node), bytes, height));
        }
        let Some(parent) = self.open.last_mut() else {
            if !matches!(*node, PropertyNode::Null) {
                self.documents.push(node);
            }
            return Ok(());
        };
        match &mut parent.node {
            UnfinishedNode::List(items) => items.push(node),
            UnfinishedNode::Map { entries, key, seen, merged } => match key.take() {
                None => {
                    let PropertyNode::Text(name) = &*node else {
                        return Err("a key is empty, or is not text".to_owned());
                    };
                    if name != "<<"
                        && let Some(first) = seen.insert(name.clone(), line)
                    {
                        let key = quotable(name);
                        return Err(format!("{key} was already given in line {first}: keep one of them"));
                    }
                    *key = Some(name.clone());
                }
                Some(name) if name == "<<" => merge(&node, merged)?,
                Some(name) => entries.push((name, node)),
            },
        }
        Ok(())
    }
}

fn quotable(key: &str) -> String {
    let folded = fold(key);
    let known = ACCOUNT.iter().map(|(name, _)| *name).chain(KNOWN_KEYS.iter().copied());
    match known.into_iter().find(|known| fold(known) == folded) {
        Some(known) => format!("the key {known}"),
        None => "a key".to_owned(),
    }
}

/// Adds the entries of `<<: *name` or `<<: [*one, *two]`; the first occurrence of a key wins.
fn merge(node: &PropertyNode, into: &mut Vec<(String, Arc<PropertyNode>)>) -> Result<(), String> {
    match node {
        PropertyNode::Map(entries) => into.extend(entries.iter().cloned()),
        PropertyNode::List(items) if items.iter().all(|item| matches!(**item, PropertyNode::Map(_))) => {
            for item in items {
                merge(item, into)?;
            }
        }
        _ => return Err("`<<` takes a mapping or a list of mappings".to_owned()),
    }
    Ok(())
}

/// The size of a value in bytes, written out, and its depth.
fn measure(node: &PropertyNode) -> (usize, usize) {
    let sum = |(bytes, height): (usize, usize), key: usize, child: &PropertyNode| {
        let (more, deep) = measure(child);
        (bytes.saturating_add(key).saturating_add(more), height.max(deep))
    };
    let (bytes, height) = match node {
        PropertyNode::Null => return (NODE_BYTES, 1),
        PropertyNode::Text(text) => return (NODE_BYTES + text.len(), 1),
        PropertyNode::List(items) => items.iter().fold((NODE_BYTES, 0), |so_far, item| sum(so_far, 0, item)),
        PropertyNode::Map(entries) => {
            entries.iter().fold((NODE_BYTES, 0), |so_far, (key, node)| sum(so_far, key.len(), node))
        }
    };
    (bytes, height + 1)
}
