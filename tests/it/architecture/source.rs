//! A source file, parsed just well enough to find the paths in its code.

use std::path::{Path, PathBuf};

/// A source file below `src/`.
pub(super) struct Source {
    /// Path in the repository.
    pub(super) file: String,
    /// Module path below the crate.
    pub(super) module: Vec<String>,
    /// The text.
    pub(super) text: String,
    /// The code without comments, literals and inline test modules.
    tokens: Vec<Token>,
    /// Names of the test modules in files of their own.
    tests: Vec<String>,
}

/// A path in the code.
pub(super) struct Reference {
    /// The path, from the crate's root.
    pub(super) path: Vec<String>,
    /// Line number.
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// All sources of the crate, except those of test modules.
pub(super) fn all_sources() -> Vec<Source> {
    let mut files = Vec::new();
    find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    files.sort();
    let sources: Vec<_> = files
        .iter()
        .map(|path| {
            let file = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("it was found there");
            let text = std::fs::read_to_string(path).expect("a source is text");
            Source::new(&file.display().to_string(), &text)
        })
        .collect();
    let tests: Vec<Vec<String>> = sources
        .iter()
        .flat_map(|source| {
            source.tests.iter().map(|name| [source.module.clone(), vec![name.clone()]].concat())
        })
        .collect();
    let of_tests = |source: &Source| tests.iter().any(|module| source.module.starts_with(module));
    sources.into_iter().filter(|source| !of_tests(source)).collect()
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the checkout is whole") {
        let path = entry.expect("the checkout is whole").path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

impl Source {
    pub(super) fn new(file: &str, text: &str) -> Self {
        let module = file
            .trim_start_matches("src/")
            .trim_end_matches(".rs")
            .split('/')
            .filter(|part| *part != "lib" && *part != "mod")
            .map(str::to_owned)
            .collect();
        let (tokens, tests) = without_tests(&tokens(text));
        Self { file: file.to_owned(), module, text: text.to_owned(), tokens, tests }
    }

    pub(super) fn is_below(&self, module: &[&str]) -> bool {
        self.module.iter().map(String::as_str).take(module.len()).eq(module.iter().copied())
    }

    pub(super) fn test_modules(&self) -> &[String] {
        &self.tests
    }

    /// Modules that this file declares and that have files of their own.
    pub(super) fn declared_modules(&self) -> Vec<String> {
        self.tokens
            .windows(3)
            .filter(|three| three[0].text == "mod" && three[2].text == ";")
            .map(|three| three[1].text.clone())
            .collect()
    }

    /// Lines in which these names follow one another, as a path or in a `use` with braces.
    pub(super) fn mentions(&self, path: &[&str]) -> Vec<usize> {
        let used = self.trees("use").into_iter();
        let within = |long: &[String]| {
            long.windows(path.len()).any(|part| part.iter().map(String::as_str).eq(path.iter().copied()))
        };
        let mut lines: Vec<_> = used.filter(|one| within(&one.path)).map(|one| one.line).collect();
        let names: Vec<_> = path.iter().flat_map(|name| ["::", name]).skip(1).collect();
        lines.extend(
            self.tokens
                .windows(names.len())
                .filter(|part| part.iter().map(|token| token.text.as_str()).eq(names.iter().copied()))
                .map(|part| part[0].line),
        );
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    fn trees(&self, keyword: &str) -> Vec<Reference> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            if token.text == keyword {
                tree(&self.tokens, at + 1, Vec::new(), token.line, &mut found);
            }
        }
        found
    }

    /// Every path in the code that starts with `crate`, `super` or `self`, resolved from the crate's root.
    pub(super) fn references(&self) -> Vec<Reference> {
        let mut found = Vec::new();
        let mut inline: Vec<(String, usize)> = Vec::new();
        let (mut depth, mut at) = (0, 0);
        while at < self.tokens.len() {
            let text = self.tokens[at].text.as_str();
            let next = |offset: usize| self.tokens.get(at + offset).map_or("", |token| token.text.as_str());
            match text {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inline.retain(|(_, opened)| *opened <= depth);
                }
                "mod" if next(2) == "{" => inline.push((next(1).to_owned(), depth + 1)),
                "crate" | "super" | "self"
                    if next(1) == "::" && (at == 0 || self.tokens[at - 1].text != "::") =>
                {
                    let here = self.module.iter().cloned().chain(inline.iter().map(|(name, _)| name.clone()));
                    let line = self.tokens[at].line;
                    at = tree(&self.tokens, at, here.collect(), line, &mut found);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        found
    }
}

/// Parses a path, or a tree of paths in braces, starting at `at`; `base` is the module that contains it.
/// Returns the position after it.
fn tree(
    tokens: &[Token],
    mut at: usize,
    mut base: Vec<String>,
    line: usize,
    found: &mut Vec<Reference>,
) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    loop {
        match text(at) {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            "{" => {
                at += 1;
                while text(at) != "}" && at < tokens.len() {
                    if text(at) == "," {
                        at += 1;
                        continue;
                    }
                    let next = tree(tokens, at, base.clone(), line, found);
                    at = if next == at { at + 1 } else { next };
                }
                return at + 1;
            }
            name => base.push(name.to_owned()),
        }
        at += 1;
        if text(at) != "::" || !(is_name(text(at + 1)) || matches!(text(at + 1), "{" | "*")) {
            found.push(Reference { path: base, line });
            return at;
        }
        at += 1;
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the tokens without inline test modules, and the names of test modules in files of their own.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut tests, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let marked = tokens[at..].iter().map(|token| token.text.as_str()).take(MARK.len()).eq(MARK);
        if !marked {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let start = at;
        while at < tokens.len() && !matches!(tokens[at].text.as_str(), ";" | "{") {
            at += 1;
        }
        let of_module = tokens[start..at].iter().position(|token| token.text == "mod");
        if let (Some(module), Some(";")) = (of_module, tokens.get(at).map(|token| token.text.as_str())) {
            tests.push(tokens[start + module + 1].text.clone());
        }
        let mut depth = 0;
        while at < tokens.len() {
            match tokens[at].text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
    }
    (kept, tests)
}

/// Splits code into names, `::` and other single characters; comments, literals and lifetimes are dropped.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let start = at;
        match rest {
            ['/', '/', ..] => at += rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => at += block_comment(rest),
            ['"', ..] => at += string(rest),
            ['r' | 'b', ..] if raw_string(rest).is_some() => at += raw_string(rest).unwrap_or(1),
            ['b', '"', ..] => at += 1 + string(&rest[1..]),
            ['\'', ..] => at += quote(rest),
            [':', ':', ..] => {
                tokens.push(Token { text: "::".to_owned(), line });
                at += 2;
            }
            [c, ..] if c.is_alphabetic() || *c == '_' => {
                let name: String = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                at += name.chars().count();
                tokens.push(Token { text: name, line });
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.to_string(), line });
                }
                at += 1;
            }
            [] => {}
        }
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Length of a raw string that starts here.
fn raw_string(rest: &[char]) -> Option<usize> {
    let prefix = if rest.starts_with(&['b', 'r']) { 2 } else { usize::from(rest.first() == Some(&'r')) };
    let hashes = rest.get(prefix..)?.iter().take_while(|c| **c == '#').count();
    if prefix == 0 || rest.get(prefix + hashes) != Some(&'"') {
        return None;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = prefix + hashes + 1;
    let length = rest[body..].windows(end.len()).position(|part| part == end)?;
    Some(body + length + end.len())
}

/// Length of a character literal, or of the quote before a lifetime.
fn quote(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, more @ ..] => 3 + more.iter().take_while(|c| **c != '\'').count() + 1,
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}
