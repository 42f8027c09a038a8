//! Which subjects of certificates are let in.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::Subject;

/// Maximum number of filters.
const MAX_FILTERS: usize = 1000;
/// Maximum size of a compiled filter, in bytes.
const MAX_FILTER_BYTES: usize = 1 << 20;

/// How a filter matches a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectMatch {
    /// A match begins and ends where an attribute does.
    #[default]
    Attribute,
    /// Anywhere: `CN=agent` also lets in `CN=agent-of-somebody-else`.
    Search,
}

/// Why filters cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SubjectFilterError {
    /// There are none.
    #[error("there must be at least one filter, such as ^CN=agent-[a-z]+,O=acme$")]
    Empty,
    /// There are too many.
    #[error("there are more than {MAX_FILTERS} filters")]
    TooMany,
    /// One is empty.
    #[error("filter {number} is empty, and would let everybody in")]
    Blank {
        /// Its number, from 1.
        number: usize,
    },
    /// One does not compile.
    #[error(
        "filter {number} is no regular expression that can be matched in linear time (no look-around, no back-references)"
    )]
    Pattern {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: Box<regex::Error>,
    },
}

/// The filters. Matching takes linear time.
#[derive(Clone, Debug)]
pub struct SubjectFilters(Vec<Regex>);

impl PartialEq for SubjectFilters {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(Regex::as_str).eq(other.0.iter().map(Regex::as_str))
    }
}

impl SubjectFilters {
    /// Compiles regular expressions.
    ///
    /// # Errors
    /// There is none, or one does not compile.
    pub fn compile(filters: &[String], how: SubjectMatch) -> Result<Self, SubjectFilterError> {
        match filters.len() {
            0 => return Err(SubjectFilterError::Empty),
            1..=MAX_FILTERS => {}
            _ => return Err(SubjectFilterError::TooMany),
        }
        let compile = |(at, filter): (usize, &String)| {
            let number = at + 1;
            if filter.trim().is_empty() {
                return Err(SubjectFilterError::Blank { number });
            }
            let compiled = |pattern: &str| {
                let compiled = RegexBuilder::new(pattern).size_limit(MAX_FILTER_BYTES).build();
                compiled.map_err(|error| SubjectFilterError::Pattern { number, source: Box::new(error) })
            };
            // By itself first: it cannot close the group around it.
            let own = compiled(filter)?;
            match how {
                SubjectMatch::Search => Ok(own),
                SubjectMatch::Attribute => compiled(&format!(r"(?:\A|[+]|, ?)(?:{filter})(?:\z|[+]|, ?)")),
            }
        };
        filters.iter().enumerate().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a filter matches the subject in one of its forms.
    pub fn admit(&self, subject: &Subject) -> bool {
        self.0.iter().any(|filter| subject.forms().any(|form| filter.is_match(form)))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::DnType;

    use super::super::subject::tests::subject;
    use super::*;

    fn admits(filter: &str, how: SubjectMatch, name: &[(DnType, &str)]) -> bool {
        SubjectFilters::compile(&[filter.to_owned()], how).expect("it compiles").admit(&subject(name))
    }

    #[test]
    fn a_filter_matches_whole_attributes_in_either_order() {
        let name = [
            (DnType::OrganizationName, "acme"),
            (DnType::OrganizationalUnitName, "ops"),
            (DnType::CommonName, "agent-1"),
        ];
        for (filter, expected) in [
            ("CN=agent-1", true),
            ("CN=agent-[0-9]", true),
            ("^CN=agent-1,OU=ops,O=acme$", true),
            ("CN=agent-1, OU=ops, O=acme", true),
            ("O=acme,OU=ops", true),
            ("^O=acme, OU=ops, CN=agent-.*$", true),
            ("OU=ops", true),
            ("CN=agent-1|CN=agent-2", true),
            ("CN=.*,O=acme", true),
            ("CN=agent", false),
            ("N=agent-1", false),
            ("agent-1", false),
            ("CN=agent-1,O=acme", false),
            ("CN=AGENT-1", false),
            ("(?i)CN=AGENT-1", true),
            ("^OU=ops$", false),
        ] {
            assert_eq!(admits(filter, SubjectMatch::Attribute, &name), expected, "{filter}");
        }
        for filter in ["CN=agent", "agent-1", "gent"] {
            assert!(admits(filter, SubjectMatch::Search, &name), "{filter}");
        }
    }

    #[test]
    fn a_value_cannot_pass_for_further_attributes() {
        for value in ["x,O=acme", "x, O=acme", "x+O=acme", "x\nO=acme", "x\\,O=acme"] {
            let name = [(DnType::CommonName, value)];
            for how in [SubjectMatch::Attribute, SubjectMatch::Search] {
                assert!(!admits("O=acme", how, &name), "{value:?} {how:?}");
            }
        }
    }

    #[test]
    fn hostile_filters_take_linear_time() {
        let name = [(DnType::CommonName, &*"a".repeat(3000))];
        for filter in ["CN=(a+)+b", "(a|a)*b", "CN=(a*)*b"] {
            assert!(!admits(filter, SubjectMatch::Attribute, &name), "{filter}");
        }
    }

    #[test]
    fn filters_that_cannot_be_used_are_named() {
        let problem = |filters: &[&str]| {
            let filters: Vec<_> = filters.iter().map(|one| (*one).to_owned()).collect();
            SubjectFilters::compile(&filters, SubjectMatch::Attribute).expect_err("it is refused").to_string()
        };
        for (filters, expected) in [
            (&[][..], "at least one filter"),
            (&["CN=a", " "], "filter 2 is empty"),
            (&["CN=a", "(?=x)"], "filter 2 is no regular expression"),
            (&["("], "filter 1 is no"),
            (&["a)|(b"], "filter 1 is no"),
            (&[r"(a)\1"], "filter 1 is no"),
            (&["(?:a{1000}){1000}"], "filter 1 is no"),
        ] {
            let problem = problem(filters);
            assert!(problem.contains(expected), "{expected:?}: {problem}");
        }
        let many = vec!["CN=a".to_owned(); 1001];
        assert!(SubjectFilters::compile(&many, SubjectMatch::Search).is_err());
    }
}
