//! Texts that only a parser handles: secret references, kubeconfigs, and accounts as Clouddriver writes them.

use kubesvc_core::KubesvcAccountSpec;
use kubesvc_core::kubeconfig::vet;
use kubesvc_core::secret_reference::Reference;
use kubesvc_core::spinnaker::{AccountInput, validate};
use serde_json::{Value, json};

/// Name of the case, the reference, and what the message must contain. The account is in namespace `own`.
const REFERENCES: &[(&str, &str, &str)] = &[
    ("a reference with a path upwards", "encrypted:k8s!n:../../other!k:k", "n is no name"),
    ("a reference with an escaped path upwards", "secret://k8s?n=%2e%2e%2Fother&k=k", "n is no name"),
    ("a reference to a key with a path", "encrypted:k8s!n:a!k:../k", "k is no key"),
    (
        "a reference to what is no namespace",
        "encryptedFile:k8s!n:a!k:k!ns:Kube",
        "ns is no name of a namespace",
    ),
    (
        "a reference to its namespace and another",
        "encrypted:k8s!n:a!k:k!ns:own!ns:kube-system",
        "the same key",
    ),
    ("a reference with extra colons for a name", "encrypted:k8s!n:a:b!k:k", "n is no name"),
    ("a reference with extra colons for an engine", "encrypted:k8s:!n:a!k:k", "its engine must have"),
    ("a reference of colons", "encrypted:::::", "names no parameter"),
    ("a reference of exclamation marks", "encrypted:k8s!!!!", "parameter 1 is empty"),
    ("a reference without a key", "encrypted:k8s!n:a", "needs the parameter k"),
    ("a reference with a parameter too many", "encrypted:k8s!n:a!k:k!x:y", "has no parameter x"),
    ("a reference in the wrong case", "ENCRYPTED:k8s!n:a!k:k", "must start with"),
    ("a reference behind a byte order mark", "\u{feff}encrypted:k8s!n:a!k:k", "must start with"),
    ("a reference with a line break", "encrypted:k8s!n:a!k:k\n", "control character"),
];

type Bytes = fn() -> Vec<u8>;

/// Name of the case, and a kubeconfig that is refused.
const KUBECONFIGS: &[(&str, Bytes)] = &[
    ("a kubeconfig that swells by aliases", || bomb().into_bytes()),
    ("a kubeconfig that is its own part", || b"a: &a [*a]\n".to_vec()),
    ("a kubeconfig of a mebibyte", || vec![b'#'; 1 << 20]),
    ("a kubeconfig of a hundred thousand brackets", || vec![b'['; 100_000]),
    ("a kubeconfig of a hundred thousand dashes", || b"- ".repeat(50_000)),
    ("a kubeconfig in UTF-16", || "kind: Config".encode_utf16().flat_map(u16::to_le_bytes).collect()),
    ("a kubeconfig of tags", || b"!!binary |\n  AAAA\n".to_vec()),
    ("a kubeconfig of keys that are no text", || b"? {a: b}\n: [c]\n1: 2\n~: 3\n".to_vec()),
    ("a kubeconfig of merge keys", || b"<<: [{kind: Config}, 5]\n".to_vec()),
];

/// Name of the case, an account as Clouddriver writes it, and the field that the error names.
fn given() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("roles that are a word", json!({"name": "a", "permissions": "READ"}), "permissions"),
        ("roles that are a number", json!({"name": "a", "permissions": 7}), "permissions"),
        (
            "roles in a list in a list",
            json!({"name": "a", "permissions": [[{"READ": ["a"]}]]}),
            "permissions",
        ),
        ("a role that is a group", json!({"name": "a", "permissions": {"READ": [{"a": 1}]}}), "permissions"),
        ("a role that is nothing", json!({"name": "a", "permissions": {"READ": [null]}}), "permissions"),
        ("a right that there is not", json!({"name": "a", "permissions": {"ADMIN": ["a"]}}), "permissions"),
        ("a name that is a list", json!({"name": ["a"]}), "name"),
        ("a name of 256 characters, by REST", json!({"name": "n".repeat(256)}), "name"),
        ("a name of a C1 control, by REST", json!({"name": "a\u{9b}31m"}), "name"),
        ("kinds that are a group", json!({"name": "a", "kinds": {"pod": true}}), "kinds"),
        (
            "an age that is a fraction",
            json!({"name": "a", "maxResumableResourceAgeMs": 0.5}),
            "maxResumableResourceAgeMs",
        ),
        ("a state of nobody, by REST", json!({"name": "a", "state": "DELETED"}), "state"),
        ("a type of another cloud", json!({"name": "a", "type": "aws"}), "type"),
    ]
}

pub(super) fn names() -> Vec<&'static str> {
    let references = REFERENCES.iter().map(|(name, ..)| *name);
    let kubeconfigs = KUBECONFIGS.iter().map(|(name, _)| *name);
    references.chain(kubeconfigs).chain(given().iter().map(|(name, ..)| *name)).collect()
}

/// Nine levels of aliases, ten in each.
fn bomb() -> String {
    let level = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "));
    (1..10).fold("a0: &a0 [x]\n".to_owned(), |text, n| text + &level(n))
}

#[test]
fn bad_references_are_refused_with_the_cause() {
    for (case, text, said) in REFERENCES {
        let refused = Reference::parse(text).and_then(|reference| {
            reference.check_parameters()?;
            reference.secret_key("own").map(drop)
        });
        let why = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains(said), "{case}: {why:?} lacks {said:?}");
    }
}

#[test]
fn bad_kubeconfigs_are_refused_within_bounded_time() {
    for (case, bytes) in KUBECONFIGS {
        let begun = std::time::Instant::now();
        let refusal = vet(&bytes(), None).err().unwrap_or_else(|| unreachable!("{case}: it is taken"));
        assert_eq!(refusal.field(), "kubeconfig", "{case}: {refusal}");
        assert!(refusal.to_string().len() < 400, "{case}: {refusal}");
        assert!(begun.elapsed().as_secs() < 10, "{case}: {:?}", begun.elapsed());
    }
}

#[test]
fn bad_accounts_of_clouddriver_are_refused_by_field() {
    for (case, account, field) in given() {
        let Value::Object(fields) = account else { unreachable!("{case}") };
        let mut spec = KubesvcAccountSpec::default();
        let why = match AccountInput::read(fields).and_then(|given| given.apply_to(&mut spec)) {
            Err(error) => error.to_string(),
            Ok(()) => validate(&spec).join("; "),
        };
        assert!(why.contains(field), "{case}: {why:?}");
    }
}
