//! What must differ between two namespaces of a cluster, in texts: names, ids, times, addresses.

use std::sync::LazyLock;

use regex::Regex;

use super::ways::Way;

/// What is replaced, in this order. Spaces that follow fill a column.
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rules = [
        // What client-go logs, or not, when a program ends its own watches: for a while, or within a second of their start.
        (r"(?m)^[EIW]\d{4} .*(context canceled|very short watch).*\n", ""),
        (r"\bway[012]\b", "WAY"),
        (r"\bwdway[012]\b", "wdWAY"),
        // Ids.
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
        (r#"("?resourceVersion"?: ?"?)\d+"#, "${1}VERSION"),
        (r#""continue": ?"[^"]+""#, r#""continue":"TOKEN""#),
        (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
        // Times. Go leaves the zeros at a fraction's end out, so that a column of such times has no fixed width.
        (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC *", "MOMENT"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000)?", "TIME"),
        (
            r"\b[A-Z][a-z]{2},? (\d\d [A-Z][a-z]{2} \d{4}|[A-Z][a-z]{2} [ \d]\d) \d\d:\d\d:\d\d( \+0000| \d{4})?",
            "TIME",
        ),
        (r#""modifiedAt": "\d+""#, r#""modifiedAt": "TIME""#),
        // Names that controllers make: of a ReplicaSet, whose hash is a number that may be small, of its pods, and others.
        (r"\b(web|shop|extra|plain|every)-[bcdf-hj-np-tv-z2456789]{6,10}\b", "$1-HASH"),
        (r#"(pod-template-hash"?[=:] ?"?|controller-revision-hash"?[=:] ?"?)[\w-]+"#, "${1}HASH"),
        (r"-HASH-[bcdf-hj-np-tv-z2456789]{5}\b", "-HASH-POD"),
        (r"\bmade-[bcdf-hj-np-tv-z2456789]{5}\b", "made-NAME"),
        (r"\.[0-9a-f]{16}\b", ".EVENT"),
        // After the names: one of them may read as an age, as 25d6h does.
        (r"\b\d+(d|h|m|s|ms)(\d+(h|m|s))*\b *", "AGE "),
        // Addresses and files.
        (r"\b10\.96\.\d+\.\d+\b *", "ADDRESS  "),
        (r"/tmp/(LIVE|MERGED)-\d+", "/tmp/$1"),
        (r"\bcluster-ip-\d+", "cluster-ip"),
    ];
    rules.map(|(pattern, with)| (Regex::new(pattern).expect("a fixed pattern"), with)).into()
});

/// What separates columns, whose width depends on addresses and moments.
static COLUMNS: LazyLock<Regex> = LazyLock::new(|| Regex::new(" {2,}").expect("a fixed pattern"));

/// A text of a way, as it would be of any other.
pub(super) fn text(way: &Way, text: &str) -> String {
    let mut text = way.without_folder(text);
    for server in &way.servers {
        text = text.replace(server.as_str(), "https://SERVER");
    }
    let text = masked(text);
    if ["ADDRESS", "MOMENT"].iter().any(|word| text.contains(word)) {
        COLUMNS.replace_all(&text, "  ").into_owned()
    } else {
        text
    }
}

fn masked(mut text: String) -> String {
    for (rule, with) in RULES.iter() {
        if let std::borrow::Cow::Owned(replaced) = rule.replace_all(&text, *with) {
            text = replaced;
        }
    }
    text
}

#[test]
fn name_that_reads_as_an_age_is_masked_as_a_name() {
    for suffix in ["25d6h", "7xk2p", "9z48h"] {
        let line = format!("shop-6f8d5c97b9-{suffix}   1/1   Running   0   25d6h");
        assert_eq!(masked(line), "shop-HASH-POD   1/1   Running   0   AGE ");
    }
    assert_eq!(masked("shop-5d4h8m9s7 3d".to_owned()), "shop-HASH AGE ");
}

#[test]
fn what_client_go_logs_of_a_watch_that_it_ends_is_left_out() {
    let ended = "I1129 03:20:56.353204   27436 reflector.go:664] \"Warning: watch ended with error\" err=\"very short watch: \
                 Unexpected watch close - watch lasted less than a second and no items received\"\n";
    assert_eq!(masked(format!("{ended}error: timed out\n")), "error: timed out\n");
}
