//! Errors and their causes as one text.

use std::error::Error;

/// Maximum number of causes followed.
const MAX_CAUSES: usize = 32;

/// Returns the error and each of its sources, joined by `: `. A source whose text already ends the result is
/// left out, so errors that embed their source read the same as those that do not.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut last = out.clone();
    let causes = std::iter::successors(error.source(), |&e| e.source());
    for cause in causes.take(MAX_CAUSES) {
        let text = cause.to_string();
        if text.is_empty() || ends_with_words(&out, &text) {
            continue;
        }
        // For "connect" with the source "connect: refused", add only the rest.
        let rest = text.strip_prefix(last.as_str()).and_then(|rest| rest.strip_prefix(": "));
        if !out.is_empty() {
            out.push_str(": ");
        }
        out.push_str(rest.unwrap_or(&text));
        last = text;
    }
    out
}

/// Whether `text` ends with `tail`, and `tail` begins at a word boundary.
fn ends_with_words(text: &str, tail: &str) -> bool {
    text.strip_suffix(tail)
        .is_some_and(|head| !head.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-')))
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug)]
    struct CauseLink(&'static str, Option<Box<CauseLink>>);

    impl std::fmt::Display for CauseLink {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for CauseLink {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|e| e as _)
        }
    }

    #[test]
    fn each_text_stands_once() {
        let cases: [(&[&'static str], &str); 9] = [
            (&["a"], "a"),
            (&["a", "b", "c"], "a: b: c"),
            (&["a: b: c", "b: c", "c"], "a: b: c"),
            (&["a: b", "b", "c"], "a: b: c"),
            (&["connect", "connect: refused"], "connect: refused"),
            (&["same", "same", "same"], "same"),
            (&["a", "", "b"], "a: b"),
            (&["", "b"], "b"),
            (&["not found", "found", "und"], "not found: und"),
        ];
        for (texts, want) in cases {
            let error = texts.iter().rev().fold(None, |cause, text| Some(Box::new(CauseLink(text, cause))));
            let error = error.expect("each case has a text");
            assert_eq!(chain(error.as_ref()), want, "{texts:?}");
        }
    }

    #[test]
    fn a_chain_without_end_is_cut() {
        let error = (0..1000).fold(CauseLink("end", None), |cause, i| {
            CauseLink(if i % 2 == 0 { "even" } else { "odd" }, Some(Box::new(cause)))
        });
        assert_eq!(chain(&error).matches("even").count(), 16);
    }
}
