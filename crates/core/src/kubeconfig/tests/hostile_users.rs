use super::*;

#[test]
fn users_that_run_read_or_impersonate_are_refused_whatever_else_they_hold() {
    let user = |extra: &str| with_user(&format!("{TOKEN}, {extra}"));
    hold_refusals(&[
        (
            "exec",
            user("exec: {command: CANARY-command, args: [CANARY-arg], env: [{name: A, value: CANARY-env}]}"),
            "users[bot].user.exec",
        ),
        ("exec, empty", user("exec: {}"), "users[bot].user.exec"),
        ("exec, of a wrong type", user("exec: CANARY-command"), "users[bot].user.exec"),
        ("exec, escaped", user("\"e\\x78ec\": {command: CANARY}"), "users[bot].user.exec"),
        (
            "auth-provider",
            user("auth-provider: {name: gcp, config: {cmd-path: /bin/sh, access-token: CANARY-access}}"),
            "users[bot].user.auth-provider",
        ),
        ("tokenFile", user("tokenFile: /var/run/CANARY"), "users[bot].user.tokenFile"),
        (
            "client-certificate",
            user("client-certificate: /etc/CANARY.crt"),
            "users[bot].user.client-certificate",
        ),
        ("client-key", user("client-key: ../CANARY.key"), "users[bot].user.client-key"),
        ("as", user("as: system:admin"), "users[bot].user.as"),
        ("as-uid", user("as-uid: CANARY"), "users[bot].user.as-uid"),
        ("as-uid, a number", user("as-uid: 0"), "users[bot].user.as-uid"),
        ("as-groups", user("as-groups: [system:masters]"), "users[bot].user.as-groups"),
        ("as-user-extra", user("as-user-extra: {reason: [CANARY]}"), "users[bot].user.as-user-extra"),
    ]);
}

#[test]
fn users_without_one_sound_credential_are_refused() {
    let certificate = format!("client-certificate-data: {}", certificate());
    let key_data = format!("client-key-data: {}", key());
    let certificate_of =
        |pem: &str| with_user(&format!("client-certificate-data: {}, {key_data}", STANDARD.encode(pem)));
    let key_of = |pem: &str| with_user(&format!("{certificate}, client-key-data: {}", STANDARD.encode(pem)));
    let user = |user: &str| with_user(user);
    let own = "users[bot].user";
    let token = "users[bot].user.token";
    let of_certificate = "users[bot].user.client-certificate-data";
    let of_key = "users[bot].user.client-key-data";
    let encrypted = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nQ0FOQVJZ\n\
                     -----END RSA PRIVATE KEY-----\n";
    hold_refusals(&[
        ("nothing", user(""), own),
        ("an empty token", user("token: ''"), own),
        ("a null token", user("token: null"), own),
        ("another case", user("Token: CANARY"), own),
        ("a number as token", user("token: 1234567890"), token),
        ("a float as token", user("token: -1.5e10"), token),
        ("a hexadecimal number as token", user("token: 0xCA11AB1E"), token),
        ("a boolean as token", user("token: true"), token),
        ("a list as token", user("token: [CANARY]"), token),
        ("a mapping as token", user("token: {CANARY: CANARY}"), token),
        ("a token with a line break", user("token: \"CANARY\\r\\nX-Evil: CANARY\""), token),
        ("a token with a line break at its end", user("token: \"CANARY\\n\""), token),
        ("a token with a blank", user("token: Bearer CANARY"), token),
        ("a token with a NUL", user("token: \"CANARY\\0\""), token),
        ("a token beyond ASCII", user("token: CANARY-ä"), token),
        ("a token that kubectl masked", user("token: REDACTED"), token),
        ("a certificate without its key", user(&certificate), of_key),
        ("a key without its certificate", user(&key_data), of_certificate),
        ("a token and half a pair", user(&format!("{TOKEN}, {key_data}")), of_certificate),
        (
            "a certificate that kubectl masked",
            user(&format!("client-certificate-data: DATA+OMITTED, {key_data}")),
            of_certificate,
        ),
        (
            "a certificate that is no base64",
            user(&format!("client-certificate-data: 'CANARY!', {key_data}")),
            of_certificate,
        ),
        ("base64 without padding", user(&format!("{certificate}, client-key-data: Q0FOQVJZQQ")), of_key),
        (
            "base64 of another alphabet",
            user(&format!("{certificate}, client-key-data: _-__Q0FOQVJZ")),
            of_key,
        ),
        ("base64 with blanks", user(&format!("{certificate}, client-key-data: 'Q0FO QVJZ'")), of_key),
        (
            "PEM that is not encoded",
            user(&format!(
                "{certificate}, client-key-data: \"{}\"",
                pem("PRIVATE KEY", "CANARY").replace('\n', "\\n")
            )),
            of_key,
        ),
        ("a certificate that is none", certificate_of("CANARY"), of_certificate),
        ("a key as certificate", certificate_of(&pem("PRIVATE KEY", "CANARY")), of_certificate),
        ("a request as certificate", certificate_of(&pem("CERTIFICATE REQUEST", "CANARY")), of_certificate),
        ("a certificate of nothing", certificate_of(&pem("CERTIFICATE", "")), of_certificate),
        (
            "a certificate that ends early",
            certificate_of("-----BEGIN CERTIFICATE-----\nQQ=="),
            of_certificate,
        ),
        ("a key that is none", key_of("CANARY"), of_key),
        ("a certificate as key", key_of(&pem("CERTIFICATE", "CANARY")), of_key),
        ("a public key as key", key_of(&pem("PUBLIC KEY", "CANARY")), of_key),
        ("an encrypted key", key_of(&pem("ENCRYPTED PRIVATE KEY", "CANARY")), of_key),
        ("an encrypted key of the old form", key_of(encrypted), of_key),
        ("two keys", key_of(&pem("PRIVATE KEY", "CANARY").repeat(2)), of_key),
        (
            "a key of broken base64",
            key_of("-----BEGIN PRIVATE KEY-----\nCANARY!\n-----END PRIVATE KEY-----"),
            of_key,
        ),
        ("a login by password", user("username: admin, password: CANARY"), "users[bot].user.username"),
        ("a user name without a password", user("username: admin"), "users[bot].user.username"),
        ("a password without a user name", user("password: CANARY"), "users[bot].user.password"),
        ("a number as password", user("password: 123"), "users[bot].user.password"),
        (
            "a token and a password",
            user(&format!("{TOKEN}, username: admin, password: CANARY-password")),
            "users[bot].user.username",
        ),
        (
            "a certificate and a password",
            user(&format!("{certificate}, {key_data}, username: admin, password: CANARY")),
            "users[bot].user.username",
        ),
        ("a user that is a text", with_user("").replace("user: {}", "user: CANARY"), "users[bot].user"),
        ("a user that is null", with_user("").replace("user: {}", "user: null"), "users[bot].user"),
        ("a user without a body", with_user("").replace(", user: {}", ""), "users[bot].user"),
    ]);
}

#[test]
fn only_running_programs_is_the_failure_of_its_own() {
    assert!(refused(&with_user("exec: {command: aws}")).is_exec());
    assert!(refused(&with_user("auth-provider: {name: oidc}")).is_exec());
    let both = kubeconfig("server: 'http://plain', proxy-url: x", "exec: {command: aws}, tokenFile: /x");
    assert!(refused(&both).is_exec());
    assert!(!refused(&with_user("tokenFile: /x")).is_exec());
    assert!(!refused("").is_exec());
}

#[test]
fn a_refusal_reads_as_a_sentence_with_a_remedy() {
    assert_eq!(
        refused(&with_user("exec: {command: aws}")).to_string(),
        "users[bot].user.exec runs a program to log in; use a token, or client-certificate-data with client-key-data"
    );
    assert_eq!(
        refused(&with_user("username: admin, password: CANARY")).to_string(),
        "users[bot].user.username is a login by user name and password, which Kubernetes has not had since 1.19; \
         use a token, or client-certificate-data with client-key-data"
    );
    assert_eq!(
        refused(&with_user("token: REDACTED")).to_string(),
        "users[bot].user.token holds no value; that is kubectl's mask for a secret: use `kubectl config view --raw`"
    );
    assert_eq!(
        refused(&with_user("token: \"CANARY\\n\"")).to_string(),
        "users[bot].user.token holds a line break; write the token on one line, without `|` or `>` before it"
    );
}
