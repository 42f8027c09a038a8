//! Objects of a watched scope without a row: their text in `kubesvc_resourceversion.problem`, for people, and its
//! parser, for REST. Pure.
//!
//! `2 objects are left out: "shop/web": metadata.resourceVersion has more than 64 characters; and 1 more`

use crate::failure::printable;
use crate::wire::events::{LeftOutObject, LeftOutObjects};

/// Maximum number of objects of a scope that are named.
pub const MAX_NAMED: usize = 20;
/// Maximum length of the text, in bytes, within the limit of a stored problem.
const MAX_TEXT_BYTES: usize = 1_000;
/// Maximum length of one reason, in bytes.
const MAX_WHY_BYTES: usize = 120;
/// Maximum lengths of an object's namespace and name, in characters.
const MAX_NAMESPACE_CHARS: usize = 63;
const MAX_NAME_CHARS: usize = 253;
/// Room for the number of unnamed objects, in bytes.
const COUNT_BYTES: usize = "; and 4294967295 more".len();
/// Text after the number, singular and plural.
const HEADS: [&str; 2] = [" object is left out", " objects are left out"];
/// Separators before the first object, and before each further one.
const BEFORE_OBJECTS: [&str; 2] = [": ", "; "];

/// Text for an agent's report; `None` if nothing is left out. Names the first objects that fit, and counts the others.
pub fn text(left_out: &LeftOutObjects) -> Option<String> {
    let count = left_out.count.max(u32::try_from(left_out.objects.len()).unwrap_or(u32::MAX));
    let mut text = match count {
        0 => return None,
        1 => format!("1{}", HEADS[0]),
        _ => format!("{count}{}", HEADS[1]),
    };
    let mut named: u32 = 0;
    for object in left_out.objects.iter().take(MAX_NAMED).filter(|object| has_name(object)) {
        let why = printable(&object.why, MAX_WHY_BYTES).replace('"', "'").replace(';', ",");
        let before = BEFORE_OBJECTS[usize::from(named > 0)];
        let entry = format!("{before}{}{why}", quoted(&object.namespace, &object.name));
        if text.len() + entry.len() + COUNT_BYTES > MAX_TEXT_BYTES {
            break;
        }
        text.push_str(&entry);
        named += 1;
    }
    if named > 0 && named < count {
        text.push_str(&format!("; and {} more", count - named));
    }
    Some(text)
}

fn has_name(object: &LeftOutObject) -> bool {
    let is_within = |text: &str, max| text.len() <= 4 * max && text.chars().count() <= max;
    !object.name.is_empty()
        && is_within(&object.namespace, MAX_NAMESPACE_CHARS)
        && is_within(&object.name, MAX_NAME_CHARS)
}

/// An object's name before its reason. Quotation marks in names are escaped; reasons contain none.
fn quoted(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        format!("{name:?}: ")
    } else {
        format!("{:?}: ", format!("{namespace}/{name}"))
    }
}

/// Stored text about objects that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLeftOut<'t> {
    /// Number of the objects.
    pub count: u32,
    objects: &'t str,
}

impl<'t> StoredLeftOut<'t> {
    /// Parses a stored problem; `None` if it is the reason why the scope is not read.
    pub fn read(problem: &'t str) -> Option<Self> {
        let (count, rest) = problem.split_at(problem.find(|one: char| !one.is_ascii_digit())?);
        let objects = HEADS.iter().find_map(|head| rest.strip_prefix(head))?;
        Some(Self { count: count.parse().ok()?, objects })
    }

    /// Reason for an object, if it is named.
    pub fn why(&self, namespace: &str, name: &str) -> Option<&'t str> {
        let wanted = quoted(namespace, name);
        let (_, why) =
            BEFORE_OBJECTS.iter().find_map(|before| self.objects.split_once(&format!("{before}{wanted}")))?;
        Some(why.split(';').next().unwrap_or(why))
    }

    /// Number of unnamed objects.
    pub fn unnamed(&self) -> u32 {
        if self.objects.is_empty() {
            return self.count;
        }
        let more = self.objects.rsplit_once("; and ").and_then(|(_, more)| more.strip_suffix(" more"));
        more.and_then(|more| more.parse().ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(namespace: &str, name: &str, why: &str) -> LeftOutObject {
        LeftOutObject { namespace: namespace.into(), name: name.into(), why: why.into() }
    }

    fn left_out(count: u32, objects: Vec<LeftOutObject>) -> String {
        text(&LeftOutObjects { count, objects }).expect("some are left out")
    }

    #[test]
    fn objects_are_found_in_their_text_by_namespace_and_name() {
        let text = left_out(
            5,
            vec![
                object("shop", "web", "its version is \"too\" long; really\n"),
                object("", "a\"b: c", "no uid"),
                object("s", "x", "y"),
            ],
        );
        assert_eq!(
            text,
            "5 objects are left out: \"shop/web\": its version is 'too' long, really; \"a\\\"b: c\": no uid; \
             \"s/x\": y; and 2 more"
        );
        let stored = StoredLeftOut::read(&text).expect("it is one");
        assert_eq!((stored.count, stored.unnamed()), (5, 2));
        assert_eq!(stored.why("shop", "web"), Some("its version is 'too' long, really"));
        assert_eq!(stored.why("", "a\"b: c"), Some("no uid"));
        assert_eq!(stored.why("s", "x"), Some("y"));
        for (namespace, name) in [("", "web"), ("shop", "we"), ("hop", "web"), ("", "b: c"), ("", "")] {
            assert_eq!(stored.why(namespace, name), None, "{namespace}/{name}");
        }
        let ends_alike = left_out(1, vec![object("", "a\"web", "c")]);
        assert_eq!(StoredLeftOut::read(&ends_alike).expect("it is one").why("", "web"), None);
        let one = left_out(1, vec![object("a", "b", "c")]);
        assert_eq!(one, "1 object is left out: \"a/b\": c");
        assert_eq!(StoredLeftOut::read(&one).map(|stored| stored.unnamed()), Some(0));
    }

    #[test]
    fn text_is_bounded_and_counts_what_it_does_not_name() {
        let long = |number: usize| object("shop", &format!("{number:0>253}"), &"w".repeat(500));
        let text = left_out(70_000, (0..MAX_NAMED).map(long).collect());
        assert!(text.len() <= MAX_TEXT_BYTES, "{}", text.len());
        let stored = StoredLeftOut::read(&text).expect("it is one");
        assert_eq!((stored.count, stored.unnamed()), (70_000, 69_998));
        assert!(stored.why("shop", &format!("{:0>253}", 1)).is_some_and(|why| why.starts_with("www")));
        // Invalid names are only counted.
        let nameless = left_out(2, vec![object("shop", "", "x"), object("shop", &"n".repeat(254), "x")]);
        assert_eq!(nameless, "2 objects are left out");
        assert_eq!(StoredLeftOut::read(&nameless).map(|stored| stored.unnamed()), Some(2));
        assert_eq!(super::text(&LeftOutObjects::default()), None);
    }

    #[test]
    fn other_problems_are_no_objects() {
        for other in [
            "",
            "7",
            "the server answered 403",
            "12 objects",
            "objects are left out",
            "99999999999 objects are left out",
        ] {
            assert_eq!(StoredLeftOut::read(other), None, "{other}");
        }
    }
}
