use std::time::{Duration, Instant};

use super::*;

#[test]
fn files_that_are_no_plain_kubeconfig_are_refused() {
    let good = with_user(TOKEN);
    let file = "kubeconfig";
    let too_deep =
        |open: &str, close: &str| format!("{good}extensions: {}{}\n", open.repeat(32), close.repeat(32));
    hold_refusals(&[
        ("nothing", String::new(), file),
        ("blanks", " \n\t\n".to_owned(), file),
        ("a comment", "# CANARY\n".to_owned(), file),
        ("a byte order mark", "\u{feff}".to_owned(), file),
        ("an empty document", "---\n...\n".to_owned(), file),
        ("a text", "CANARY-token".to_owned(), file),
        ("a list", "- CANARY\n".to_owned(), file),
        ("a null", "~".to_owned(), file),
        ("a NUL", format!("{good}# \0"), file),
        ("an unclosed quote", "token: \"CANARY\nkind: Config\n".to_owned(), file),
        ("an unclosed mapping", "{token: CANARY".to_owned(), file),
        ("a closed mapping too many", format!("{good}}}"), file),
        ("a tab as indentation", "users:\n\t- CANARY\n".to_owned(), file),
        ("a text where a key should be", "kind: Config\nCANARY-token\n".to_owned(), file),
        ("an unknown escape", "kind: \"\\q CANARY\"".to_owned(), file),
        ("an anchor", good.replace("token: ", "token: &a "), file),
        ("an anchor on a mapping", good.replace("user: {", "user: &CANARY {"), file),
        ("an anchor on a list", good.replace("users: [", "users: &CANARY ["), file),
        ("an anchor on a key", format!("{good}&CANARY x: y\n"), file),
        ("an alias", format!("{good}x: &CANARY y\nz: *CANARY\n"), file),
        ("an alias of nothing", format!("{good}z: *CANARY\n"), file),
        ("an alias as key", format!("{good}*CANARY : y\n"), file),
        ("an alias of itself", format!("{good}x: &CANARY [*CANARY]\n"), file),
        ("a merge key", good.replace("user: {", "user: {<<: {exec: {command: CANARY}}, "), file),
        ("a tag", good.replace("token: ", "token: !!binary "), file),
        ("a tag for a text", good.replace("token: ", "token: !!str "), file),
        ("a local tag", good.replace("token: ", "token: !CANARY "), file),
        ("an undeclared tag", good.replace("token: ", "token: !c!CANARY "), file),
        ("a tag on a mapping", good.replace("user: {", "user: !!map {"), file),
        ("a key that is a list", format!("{good}? [CANARY]\n: y\n"), file),
        ("a key that is a mapping", format!("{good}? {{CANARY: x}}\n: y\n"), file),
        ("a second document", format!("{good}---\n{good}"), file),
        ("a second document after an empty one", format!("{good}---\n---\n{good}"), file),
        ("lists too deep", too_deep("[", "]"), file),
        ("mappings too deep", too_deep("{a: ", "}"), file),
        (
            "indentation too deep",
            (0..40).fold(good.clone(), |text, n| text + &format!("{:n$}a:\n", "")),
            file,
        ),
        ("dashes too deep", format!("{good}x:\n{}y\n", "- ".repeat(40)), file),
        ("a key twice", format!("{good}kind: Config\n"), file),
        ("a token twice", good.replace("token: ", "token: CANARY-other, token: "), file),
        (
            "a key twice, once in quotes",
            good.replace("token: ", "\"t\\x6fken\": CANARY-other, token: "),
            file,
        ),
        ("a key twice where nothing is used", format!("{good}x: {{CANARY: 1, CANARY: 2}}\n"), file),
        ("too large", format!("{good}# {}", "x".repeat(256 * 1024)), file),
        ("another kind", good.replace("kind: Config", "kind: Secret"), "kind"),
        ("a kind of a wrong type", good.replace("kind: Config", "kind: [CANARY]"), "kind"),
        ("a kind of another case", good.replace("kind: Config", "kind: config"), "kind"),
        ("another version", good.replace("apiVersion: v1", "apiVersion: v2"), "apiVersion"),
        ("a number as version", good.replace("apiVersion: v1", "apiVersion: 1"), "apiVersion"),
    ]);
}

#[test]
fn errors_in_a_file_name_line_and_column() {
    let good = with_user(TOKEN);
    let told = |text: &str| refused(text).to_string();
    assert_eq!(
        told(&format!("{good}kind: Config\n")),
        "kubeconfig cannot be taken: at line 7, column 1, the key kind is there a second time; keep one of them"
    );
    assert_eq!(
        told(&format!("{good}a:\n  b: &x y\n")),
        "kubeconfig cannot be taken: at line 8, column 9, there is an anchor or an alias; \
         write the value out at each place"
    );
    assert!(
        told(&format!("{good}CANARY: 1\nCANARY: 2\n"))
            .contains("line 8, column 1, a key is there a second time")
    );
    assert!(told(&format!("{good}x: [[")).contains("it is not YAML"));
    for deep in ["[", "{a: "] {
        assert!(told(&format!("{good}x: {}", deep.repeat(50_000))).contains("nested more than 32 deep"));
        assert!(
            told(&format!("{good}x: {}{}", deep.repeat(32), if deep == "[" { "]" } else { "}" }.repeat(32)))
                .contains("nested more than 32 deep")
        );
    }
}

#[test]
fn other_encodings_are_refused() {
    let good = with_user(TOKEN);
    let utf16: Vec<u8> = "\u{feff}".chars().chain(good.chars()).flat_map(|c| [c as u8, 0]).collect();
    let latin1 = [good.as_bytes(), b"# \xe4\n"].concat();
    for (bytes, why) in
        [(utf16, "UTF-16"), (latin1, "UTF-8"), (vec![0xff, 0xfe], "UTF-8"), (vec![0; 9], "NUL")]
    {
        let refusal = vet(&bytes, None).unwrap_err();
        assert_eq!(refusal.field(), "kubeconfig");
        assert!(refusal.to_string().contains(why), "{refusal}");
        assert!(!leaks(&format!("{refusal:?}")));
    }
}

#[test]
fn files_of_the_largest_size_are_read_in_bounded_time() {
    let room = MAX_BYTES - 64;
    for (what, text) in [
        ("open lists", "[".repeat(room)),
        ("closed lists", "[],".repeat(room / 3)),
        ("commas", format!("[{}]", "a,".repeat(room / 2))),
        ("questions", "? ".repeat(room / 2)),
        ("dashes", "- ".repeat(room / 2)),
        ("colons", "a: ".repeat(room / 3)),
        ("lines", "\n".repeat(room)),
        ("comments", "#\n".repeat(room / 2)),
        ("keys", (0..room / 10).map(|n| format!("k{n:06}:\n")).collect()),
        ("a long key", format!("{}: x", "k".repeat(room))),
        ("a long text", format!("kind: |\n{}", "  x\n".repeat(room / 4))),
        ("escapes", format!("\"{}\"", "\\x41".repeat(room / 4))),
        ("quotes", "''".repeat(room / 2)),
        ("documents", "---\n".repeat(room / 4)),
        ("directives", "%A b\n".repeat(room / 5)),
        ("tags", "!a ".repeat(room / 3)),
        ("anchors", "&a ".repeat(room / 3)),
        ("names", format!("contexts: [{}]", "{name: a},".repeat(room / 10 - 2))),
    ] {
        let begun = Instant::now();
        assert!(vet(text.as_bytes(), None).is_err(), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{what} took {:?}", begun.elapsed());
    }
}

#[test]
fn a_cut_out_that_would_be_too_large_to_vet_again_is_refused() {
    let name = "ä".repeat(40 * 1024);
    let text = with_user(TOKEN).replace("name: dev", &format!("name: {name}"));
    let refusal = vet(text.as_bytes(), Some(&name)).unwrap_err();
    assert!(refusal.to_string().contains("too large once cut out"), "{refusal}");
}
