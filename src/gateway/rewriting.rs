//! What an account's API server says of its own paths. Pure.

use serde_json::Value;

/// Path of the index whose entries are paths.
const OPEN_API_INDEX: &str = "/openapi/v3";

/// Whether the body of this path names paths.
pub(super) fn has_paths(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path.strip_suffix('/').unwrap_or(path) == OPEN_API_INDEX
}

/// The address of a header `Location` below `prefix`; one of another server stays.
pub(super) fn location(value: &str, prefix: &str) -> String {
    if value.starts_with('/') && !value.starts_with("//") {
        format!("{prefix}{value}")
    } else {
        value.to_owned()
    }
}

/// The index of `/openapi/v3` with `prefix` before each address; `None` if it is none.
pub(super) fn open_api_index(body: &[u8], prefix: &str) -> Option<Vec<u8>> {
    let mut index: Value = serde_json::from_slice(body).ok()?;
    for path in index.get_mut("paths")?.as_object_mut()?.values_mut() {
        if let Some(Value::String(url)) = path.get_mut("serverRelativeURL") {
            *url = location(url, prefix);
        }
    }
    serde_json::to_vec(&index).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_the_account_get_the_prefix_and_others_stay() {
        assert_eq!(location("/api/v1", "/p"), "/p/api/v1");
        assert_eq!(location("https://other/x", "/p"), "https://other/x");
        assert_eq!(location("//other/x", "/p"), "//other/x");
        assert!(
            has_paths("/openapi/v3") && has_paths("/openapi/v3/?x=1") && !has_paths("/openapi/v3/api/v1")
        );
        let index = json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=A"}}});
        let rewritten = open_api_index(index.to_string().as_bytes(), "/p").expect("an index");
        let rewritten: Value = serde_json::from_slice(&rewritten).expect("JSON");
        assert_eq!(rewritten["paths"]["api/v1"]["serverRelativeURL"], "/p/openapi/v3/api/v1?hash=A");
        for other in ["", "no", "[]", "{}", r#"{"paths": 1}"#] {
            assert_eq!(open_api_index(other.as_bytes(), "/p"), None);
        }
    }
}
