//! Texts with placeholders: what a credential must look like, and what it may claim in return.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

/// Maximum size of a compiled template, in bytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// What `*` and `{name}` stand for in a credential.
const SEGMENT: &str = "[^/:,\\p{Cc}]+";

/// What the placeholders of a template stood for.
pub(super) type Captures = HashMap<String, String>;

/// Why a text cannot be used: which part of it is wrong, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {problem}")]
pub(super) struct TemplateError {
    text: String,
    problem: String,
}

impl TemplateError {
    pub(super) fn new(text: &str, problem: impl Into<String>) -> Self {
        Self { text: text.to_owned(), problem: problem.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Literal(String),
    Any,
    Name(String),
}

fn pieces(text: &str) -> Result<Vec<TemplatePiece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['*', '{', '}']) {
        literal.push_str(&rest[..at]);
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Literal(std::mem::take(&mut literal)));
        }
        let special = &rest[at..];
        if let Some(after) = special.strip_prefix('*') {
            pieces.push(TemplatePiece::Any);
            rest = after;
            continue;
        }
        let inner = special.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let Some((name, after)) = inner else {
            return Err(TemplateError::new(text, "has a brace without its partner; write {name}"));
        };
        let is_name = name.starts_with(|one: char| one.is_ascii_alphabetic())
            && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
        if !is_name {
            let rule = "a name has letters, digits and underscores, and begins with a letter";
            return Err(TemplateError::new(text, format!("names the placeholder {{{name}}}: {rule}")));
        }
        pieces.push(TemplatePiece::Name(name.to_owned()));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(TemplatePiece::Literal(literal));
    }
    Ok(pieces)
}

/// Whether a template of this text matches this text alone.
pub(super) fn is_exact(text: &str) -> bool {
    !text.contains(['*', '{', '}'])
}

/// What a value of a credential must look like.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// `None`: exactly the text.
    pattern: Option<Regex>,
    text: String,
    names: Vec<String>,
}

impl Template {
    pub(super) fn compile(text: &str) -> Result<Self, TemplateError> {
        let pieces = pieces(text)?;
        let mut names = Vec::new();
        if let [TemplatePiece::Literal(_)] | [] = pieces.as_slice() {
            return Ok(Self { pattern: None, text: text.to_owned(), names });
        }
        let are_adjacent =
            |pair: &[TemplatePiece]| !pair.iter().any(|piece| matches!(piece, TemplatePiece::Literal(_)));
        if pieces.windows(2).any(are_adjacent) {
            return Err(TemplateError::new(
                text,
                "has two placeholders side by side, so that neither has an end; put a character between them",
            ));
        }
        let mut pattern = String::from("\\A");
        for piece in pieces {
            match piece {
                TemplatePiece::Literal(literal) => pattern.push_str(&regex::escape(&literal)),
                TemplatePiece::Any => pattern.push_str(SEGMENT),
                TemplatePiece::Name(name) if names.contains(&name) => {
                    return Err(TemplateError::new(text, format!("names {{{name}}} twice")));
                }
                TemplatePiece::Name(name) => {
                    pattern.push_str(&format!("(?P<{name}>{SEGMENT})"));
                    names.push(name);
                }
            }
        }
        pattern.push_str("\\z");
        let compiled = RegexBuilder::new(&pattern).size_limit(MAX_TEMPLATE_BYTES).build();
        let pattern = compiled.map_err(|_| TemplateError::new(text, "is too long"))?;
        Ok(Self { pattern: Some(pattern), text: text.to_owned(), names })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a value looks like this. Adds what the placeholders stood for.
    pub(super) fn matches(&self, value: &str, captures: &mut Captures) -> bool {
        let Some(pattern) = &self.pattern else { return value == self.text };
        let Some(found) = pattern.captures(value) else { return false };
        self.names.iter().all(|name| {
            let part = found.name(name).map(|part| part.as_str()).unwrap_or_default();
            // One name stands for one text, also where two templates have it.
            captures.entry(name.clone()).or_insert_with(|| part.to_owned()) == part
        })
    }
}

/// What may be claimed: `*` stands for any characters. What a placeholder stood for is compared as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The texts between the asterisks.
    parts: Vec<String>,
}

impl Claim {
    /// Fills in what the placeholders stood for.
    ///
    /// # Errors
    /// The text is malformed, or names a placeholder that has no value.
    pub(super) fn fill(text: &str, captures: &Captures) -> Result<Self, TemplateError> {
        let mut parts = vec![String::new()];
        for piece in pieces(text)? {
            let last = parts.last_mut().expect("parts begin with one");
            match piece {
                TemplatePiece::Any => parts.push(String::new()),
                TemplatePiece::Literal(literal) => last.push_str(&literal),
                TemplatePiece::Name(name) => match captures.get(&name) {
                    Some(value) => last.push_str(value),
                    None => {
                        let problem = format!("uses {{{name}}}, which spec.match does not have");
                        return Err(TemplateError::new(text, problem));
                    }
                },
            }
        }
        Ok(Self { parts })
    }

    /// Checks a text whose placeholders are among these.
    pub(super) fn check(text: &str, names: &[String]) -> Result<(), TemplateError> {
        let captures = names.iter().map(|name| (name.clone(), String::new())).collect();
        Self::fill(text, &captures).map(drop)
    }

    pub(super) fn admits(&self, value: &str) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|only| only == value);
        };
        let Some(rest) = value.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        // The first place of each is the best one: it leaves the most to those that follow.
        for part in between {
            match rest.find(part.as_str()) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}
