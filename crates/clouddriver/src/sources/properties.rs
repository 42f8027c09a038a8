//! Property sources: the documents of files, or what a config server answers, from the highest to the lowest.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fields::{self, fold};
use super::placeholders::Placeholders;
use super::snapshot::{SourceItem, bad, item, unfit_name};
use super::yaml::PropertyNode;

/// Maximum index of a list.
const MAX_INDEX: usize = 100_000;
/// Where the accounts are.
const ACCOUNTS: &str = "kubernetes.accounts";

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep<'k> {
    Name(&'k str),
    Index(usize),
}

impl PathStep<'_> {
    fn is(&self, other: &PathStep<'_>) -> bool {
        match (self, other) {
            (Self::Name(one), PathStep::Name(other)) => one == other || fold(one) == fold(other),
            (Self::Index(one), PathStep::Index(other)) => one == other,
            _ => false,
        }
    }
}

/// Maximum number of steps of a key. No setting of Clouddriver has as many; each is a level of nesting.
const MAX_STEPS: usize = 24;

/// The steps of a key: `a.b[0].c` has four. A name in brackets may hold dots, as in `labels[a.b]`. A key with more than
/// [`MAX_STEPS`] is one name that nothing asks for.
pub(super) fn steps(key: &str) -> Vec<PathStep<'_>> {
    let mut steps = Vec::new();
    let mut rest = key;
    while !rest.is_empty() {
        if steps.len() == MAX_STEPS {
            return vec![PathStep::Name(key)];
        }
        if let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let index = inside.parse().ok().filter(|index| *index <= MAX_INDEX);
            steps.push(index.map_or(PathStep::Name(inside), PathStep::Index));
            rest = after.strip_prefix('.').unwrap_or(after);
            continue;
        }
        let end = rest.find(['.', '[']).filter(|end| *end > 0).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        steps.push(PathStep::Name(name));
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    steps
}

/// Calls `found` for each value at or below a path, with the steps that a key has beyond it.
pub(super) fn below<'n>(
    node: &'n PropertyNode,
    path: &[PathStep<'_>],
    found: &mut dyn FnMut(Vec<PathStep<'n>>, &'n PropertyNode),
) {
    let Some((first, rest)) = path.split_first() else { return found(Vec::new(), node) };
    match node {
        PropertyNode::List(items) => {
            if let PathStep::Index(index) = first
                && let Some(item) = items.get(*index)
            {
                below(item, rest, found);
            }
        }
        PropertyNode::Map(entries) => {
            for (key, node) in entries {
                let mut own = steps(key);
                let common = own.len().min(path.len());
                let matches = own.iter().zip(path).all(|(own, wanted)| own.is(wanted));
                if common == 0 || !matches {
                    continue;
                }
                if own.len() >= path.len() {
                    found(own.split_off(path.len()), node);
                } else {
                    below(node, path.get(common..).unwrap_or_default(), found);
                }
            }
        }
        PropertyNode::Null | PropertyNode::Text(_) => {}
    }
}

/// What is set at one name, put together from all keys below it.
#[derive(Debug, Default)]
pub(super) enum Property<'n> {
    #[default]
    Null,
    Text(&'n str),
    /// An empty list or group.
    Empty,
    Group {
        names: BTreeMap<&'n str, Property<'n>>,
        items: BTreeMap<usize, Property<'n>>,
    },
}

impl<'n> Property<'n> {
    /// Adds a value below these steps. What is there stays.
    fn insert(&mut self, steps: &[PathStep<'n>], node: &'n PropertyNode) {
        if let Some((step, rest)) = steps.split_first() {
            return self.child(step).insert(rest, node);
        }
        match node {
            PropertyNode::Null => {}
            PropertyNode::Text(text) => {
                if matches!(self, Self::Null) {
                    *self = Self::Text(text);
                }
            }
            PropertyNode::List(items) if items.is_empty() => self.set_empty(),
            PropertyNode::Map(entries) if entries.is_empty() => self.set_empty(),
            PropertyNode::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.child(&PathStep::Index(at)).insert(&[], item);
                }
            }
            PropertyNode::Map(entries) => {
                for (key, node) in entries {
                    self.insert_key(key, node);
                }
            }
        }
    }

    fn insert_key(&mut self, key: &'n str, node: &'n PropertyNode) {
        let steps = steps(key);
        // A key such as `.` has no steps; it is nothing that Spring would find.
        if !steps.is_empty() {
            self.insert(&steps, node);
        }
    }

    fn set_empty(&mut self) {
        if matches!(self, Self::Null) {
            *self = Self::Empty;
        }
    }

    fn child(&mut self, step: &PathStep<'n>) -> &mut Self {
        if !matches!(self, Self::Group { .. }) {
            *self = Self::Group { names: BTreeMap::new(), items: BTreeMap::new() };
        }
        let Self::Group { names, items } = self else { unreachable!("it was just made one") };
        match step {
            PathStep::Name(name) => names.entry(name).or_default(),
            PathStep::Index(index) => items.entry(*index).or_default(),
        }
    }

    /// Whether it is not set.
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether it is an empty list or group.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Its text, if it is one.
    pub(super) fn text(&self) -> Option<&'n str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Its entries, if it is a group.
    pub(super) fn entries(&self) -> Option<Vec<(&'n str, &Self)>> {
        match self {
            Self::Null | Self::Empty | Self::Text("") => Some(Vec::new()),
            Self::Group { names, items } if items.is_empty() => {
                Some(names.iter().map(|(name, one)| (*name, one)).collect())
            }
            _ => None,
        }
    }

    /// Its items, each with its index, if it is a list. A group whose names are all indexes is one.
    pub(super) fn items(&self) -> Option<Vec<(usize, &Self)>> {
        match self {
            Self::Null | Self::Empty | Self::Text("") => Some(Vec::new()),
            Self::Group { names, items } => {
                let index = |name: &str| name.parse().ok().filter(|index| *index <= MAX_INDEX);
                let named = names.iter().map(|(name, one)| Some((index(name)?, one)));
                let mut all: Vec<_> = named.collect::<Option<_>>()?;
                all.extend(items.iter().map(|(at, one)| (*at, one)));
                all.sort_by_key(|(at, _)| *at);
                Some(all)
            }
            Self::Text(_) => None,
        }
    }
}

/// What is set at a path in one property source; `None` if nothing is.
pub(super) fn at<'n>(node: &'n PropertyNode, path: &[PathStep<'_>]) -> Option<Property<'n>> {
    let mut property = None;
    below(node, path, &mut |steps, node| {
        property.get_or_insert_with(Property::default).insert(&steps, node);
    });
    property
}

/// The accounts in property sources, from the highest to the lowest. The list is taken whole from the first one that
/// has it.
pub(super) fn accounts(
    source: &Arc<str>,
    properties: &[Arc<PropertyNode>],
    vars: &BTreeMap<String, String>,
) -> Vec<SourceItem> {
    let path = steps(ACCOUNTS);
    // `accounts:` without a value sets an empty text.
    let Some(list) = properties.iter().find_map(|one| at(one, &path)) else { return Vec::new() };
    let Some(listed) = list.items() else {
        return vec![bad(None, ACCOUNTS, "it is not a list of accounts")];
    };
    let mut placeholders = Placeholders::new(properties, vars);
    let mut items = Vec::new();
    let mut next = 0;
    for (index, property) in listed {
        for missing in next..index.min(next + 1) {
            let why = "it is missing; Spring refuses a list with a gap";
            items.push(bad(Some(String::new()), &place(missing), why));
        }
        next = index + 1;
        items.push(account(source, &place(index), property, &mut placeholders));
    }
    items
}

fn place(index: usize) -> String {
    format!("{ACCOUNTS}[{index}]")
}

fn account(
    source: &Arc<str>,
    place: &str,
    property: &Property<'_>,
    placeholders: &mut Placeholders<'_>,
) -> SourceItem {
    let name = match name(property, placeholders) {
        Ok(name) => name,
        Err(why) => return bad(None, place, why),
    };
    if let Some(why) = unfit_name(&name) {
        return bad(Some(name), place, why);
    }
    match fields::account(property, placeholders) {
        Ok(definition) => item(source, name, definition, None),
        Err(why) => bad(Some(name), place, why),
    }
}

/// The name of an account; empty if it has none.
fn name(property: &Property<'_>, placeholders: &mut Placeholders<'_>) -> Result<String, String> {
    let Some(entries) = property.entries() else { return Err("it is not a group of fields".to_owned()) };
    let mut named = entries.iter().filter(|(name, _)| fold(name) == "name");
    let (name, again) = (named.next(), named.next());
    if again.is_some() {
        return Err("name is there twice".to_owned());
    }
    match name {
        None | Some((_, Property::Null | Property::Empty)) => Ok(String::new()),
        Some((_, Property::Text(text))) => placeholders.resolved("name", text),
        Some(_) => Err("its name is not text".to_owned()),
    }
}
