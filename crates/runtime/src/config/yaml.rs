//! Parses YAML into a small tree that keeps line numbers.
//!
//! Scalars keep their written text: only the type of a setting decides what `007`, `4MB` or `yes` means. Size, depth
//! and repetition through aliases are bounded, so that no file can exhaust the process.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, options};

use super::error::{ConfigProblem, Origin};

/// Maximum size of a settings file, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;
/// Maximum nesting depth, aliases included.
const MAX_DEPTH: usize = 64;
/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 1024;
/// Maximum that aliases may add, in bytes of text plus [`NODE_BYTES`] per value.
const MAX_REPEATED: usize = 16 << 20;
/// Cost of one value besides its text, in bytes.
const NODE_BYTES: usize = 64;

/// A value and the line on which it begins.
#[derive(Debug, Clone)]
pub struct YamlNode {
    /// The line, counted from 1; 0: it is not from a file.
    pub line: usize,
    /// The value.
    pub value: YamlValue,
}

/// The shape of a value.
#[derive(Debug, Clone)]
pub enum YamlValue {
    /// No value, `null` or `~`.
    Null,
    /// A scalar, as written.
    Text(String),
    /// A sequence.
    List(Vec<YamlNode>),
    /// A mapping, with unique keys.
    Map(Vec<MappingEntry>),
}

/// One key of a mapping.
#[derive(Debug, Clone)]
pub struct MappingEntry {
    /// The key.
    pub key: String,
    /// Its line.
    pub line: usize,
    /// Its value.
    pub node: YamlNode,
}

/// Reads and parses one file. An empty file returns [`YamlValue::Null`].
pub(super) fn read(path: &Path) -> Result<(Arc<str>, YamlNode), ConfigProblem> {
    let file: Arc<str> = path.display().to_string().into();
    let unreadable = |why: String| ConfigProblem::Unreadable { file: Arc::clone(&file), why };
    if path.is_dir() {
        return Err(unreadable("it is a folder, not a file".into()));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|e| unreadable(e.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(unreadable(format!("it is larger than {} MiB", MAX_BYTES >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..good].iter().filter(|b| **b == b'\n').count();
        ConfigProblem::Malformed {
            origin: Origin::File { file: Arc::clone(&file), line },
            why: "the text is not UTF-8".into(),
        }
    })?;
    let node = parse(&file, &text)?;
    Ok((file, node))
}

/// Parses the text of one file. `file` is only used in messages.
pub(super) fn parse(file: &Arc<str>, text: &str) -> Result<YamlNode, ConfigProblem> {
    let options = options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let at = |line: usize, why: String| ConfigProblem::Malformed {
        origin: Origin::File { file: Arc::clone(file), line },
        why,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut tree = YamlTree::default();
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|e| at(e.marker().line(), e.info()))?;
        tree.take(event, span.start.line()).map_err(|(line, why)| at(line, why))?;
    }
    Ok(tree.root.unwrap_or(YamlNode { line: 1, value: YamlValue::Null }))
}

/// A mapping or list that is not complete yet.
struct OpenNode {
    anchor: usize,
    node: YamlNode,
    /// In a mapping: the key whose value comes next.
    key: Option<(String, usize)>,
    /// In a mapping: the line of each key so far.
    seen: HashMap<String, usize>,
    /// In a mapping: the entries added by `<<`.
    merged: Vec<MappingEntry>,
}

#[derive(Default)]
struct YamlTree {
    open: Vec<OpenNode>,
    anchors: HashMap<usize, YamlNode>,
    repeated: usize,
    root: Option<YamlNode>,
}

/// A line, and what is wrong there.
type YamlFault = (usize, String);

impl YamlTree {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), YamlFault> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                let value = match text.as_ref() {
                    "" | "~" | "null" | "Null" | "NULL" if plain => YamlValue::Null,
                    _ => YamlValue::Text(text.into_owned()),
                };
                self.attach(YamlNode { line, value }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(anchor, line, YamlValue::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => self.begin(anchor, line, YamlValue::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id) else {
                    return Err((line, "an alias inside the value that it stands for".into()));
                };
                let (bytes, height) = measure(node);
                self.repeated = self.repeated.saturating_add(bytes);
                if self.repeated > MAX_REPEATED {
                    return Err((line, format!("aliases repeat more than {} MiB", MAX_REPEATED >> 20)));
                }
                if self.open.len() + height > MAX_DEPTH {
                    return Err((line, format!("nested more than {MAX_DEPTH} deep through aliases")));
                }
                let node = YamlNode { line, value: node.value.clone() };
                self.attach(node, 0)
            }
            Event::DocumentStart(..) if self.root.is_some() => {
                Err((line, "a second document begins here; a file holds one".into()))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, anchor: usize, line: usize, value: YamlValue) -> Result<(), YamlFault> {
        if let Some(OpenNode { node: YamlNode { value: YamlValue::Map(_), .. }, key: None, .. }) =
            self.open.last()
        {
            return Err((line, "a list or mapping stands where a key is expected".into()));
        }
        let node = YamlNode { line, value };
        self.open.push(OpenNode { anchor, node, key: None, seen: HashMap::new(), merged: Vec::new() });
        Ok(())
    }

    fn end(&mut self) -> Result<(), YamlFault> {
        let Some(OpenNode { anchor, mut node, seen, merged, .. }) = self.open.pop() else { return Ok(()) };
        if let YamlValue::Map(entries) = &mut node.value {
            let mut taken = std::collections::HashSet::new();
            for entry in merged {
                if !seen.contains_key(&entry.key) && taken.insert(entry.key.clone()) {
                    entries.push(entry);
                }
            }
        }
        self.attach(node, anchor)
    }

    /// Adds a complete value to its parent.
    fn attach(&mut self, node: YamlNode, anchor: usize) -> Result<(), YamlFault> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut parent.node.value {
            YamlValue::List(items) => items.push(node),
            YamlValue::Map(entries) => match parent.key.take() {
                None => {
                    let line = node.line;
                    let key = match node.value {
                        YamlValue::Text(key) if key.len() > MAX_KEY => {
                            return Err((line, format!("a key is longer than {MAX_KEY} bytes")));
                        }
                        YamlValue::Text(key) if !key.trim().is_empty() => key,
                        YamlValue::Text(_) | YamlValue::Null => return Err((line, "a key is empty".into())),
                        YamlValue::List(_) | YamlValue::Map(_) => {
                            return Err((line, "a key is not text".into()));
                        }
                    };
                    if key != "<<"
                        && let Some(first) = parent.seen.insert(key.clone(), line)
                    {
                        return Err((line, format!("`{}` was already given in line {first}", shown(&key))));
                    }
                    parent.key = Some((key, line));
                }
                Some((key, line)) if key == "<<" => merge(node, line, &mut parent.merged)?,
                Some((key, line)) => entries.push(MappingEntry { key, line, node }),
            },
            YamlValue::Null | YamlValue::Text(_) => {}
        }
        Ok(())
    }
}

/// Adds the entries of `<<: *name` or `<<: [*one, *two]`; the first occurrence of a key wins.
fn merge(node: YamlNode, line: usize, into: &mut Vec<MappingEntry>) -> Result<(), YamlFault> {
    match node.value {
        YamlValue::Map(entries) => into.extend(entries),
        YamlValue::List(items) if items.iter().all(|i| matches!(i.value, YamlValue::Map(_))) => {
            for item in items {
                merge(item, line, into)?;
            }
        }
        _ => return Err((line, "`<<` takes a mapping or a list of mappings".into())),
    }
    Ok(())
}

/// The size of a node in bytes, and its depth.
fn measure(node: &YamlNode) -> (usize, usize) {
    let children: Box<dyn Iterator<Item = (usize, &YamlNode)>> = match &node.value {
        YamlValue::Null => return (NODE_BYTES, 1),
        YamlValue::Text(text) => return (NODE_BYTES + text.len(), 1),
        YamlValue::List(items) => Box::new(items.iter().map(|item| (0, item))),
        YamlValue::Map(entries) => Box::new(entries.iter().map(|e| (e.key.len(), &e.node))),
    };
    let (bytes, height) = children.fold((NODE_BYTES, 0), |(bytes, height), (key, child)| {
        let (b, h) = measure(child);
        (bytes + key + b, height.max(h))
    });
    (bytes, height + 1)
}

/// Text from a file for use in a message: at most 80 characters, on one line, without control characters.
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut out: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}
