//! What is asked about the cache of an account.

use utoipa::IntoParams;

use super::CacheViewError;
use kubesvc_core::cache::keys::{MAX_NAME_CHARS, MAX_NAMESPACE_CHARS};
use kubesvc_core::cache::kind_names::KindSelector;

/// What is asked about the cache of an account.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CacheQuery {
    /// Only this kind, in any case: `Kind`, `Kind.group`, or as `kubesvc_cache.kind` has it. `Kind` means the native
    /// kind of that name, if there is one.
    #[param(required = false, value_type = String, min_length = 1, max_length = 317, example = "Deployment")]
    pub(super) kind: Option<KindSelector>,
    /// Namespace of the object `name`. Not used for an object without one.
    #[param(required = false, max_length = 63)]
    pub(super) namespace: String,
    /// Also this object of the kind: its row, or why there is none.
    #[param(required = false, value_type = String, min_length = 1, max_length = 253)]
    pub(super) name: Option<String>,
}

impl CacheQuery {
    /// Parses `kind`, `namespace` and `name` of a query.
    ///
    /// # Errors
    /// One of them is malformed.
    pub fn read(query: Option<&str>) -> Result<Self, CacheViewError> {
        let kind = single_value(query, "kind")?;
        let namespace = single_value(query, "namespace")?.unwrap_or_default();
        let name = single_value(query, "name")?;
        let kind = kind.map(|text| {
            let form = "kind must be Kind or Kind.group, such as Deployment or Rollout.argoproj.io";
            KindSelector::parse(&text).ok_or_else(|| bad_query(form))
        });
        let kind = kind.transpose()?;
        let fits = |text: &str, max| text.chars().count() <= max && !text.chars().any(char::is_control);
        if !fits(&namespace, MAX_NAMESPACE_CHARS) {
            return Err(bad_query("namespace must have at most 63 characters, none a control character"));
        }
        match &name {
            Some(name) if name.is_empty() || !fits(name, MAX_NAME_CHARS) => {
                Err(bad_query("name must have 1 to 253 characters, none of them a control character"))
            }
            Some(_) if kind.is_none() => Err(bad_query("name is given without kind; give both")),
            None if !namespace.is_empty() => {
                Err(bad_query("namespace is given without name; give the object's name and kind too"))
            }
            _ => Ok(Self { kind, namespace, name }),
        }
    }
}

fn bad_query(why: impl Into<String>) -> CacheViewError {
    CacheViewError::Query(why.into())
}

/// Returns a decoded query parameter. An error if it occurs twice.
fn single_value(query: Option<&str>, key: &str) -> Result<Option<String>, CacheViewError> {
    let mut pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let first = pairs.find(|(name, _)| name == key);
    if pairs.any(|(name, _)| name == key) {
        return Err(bad_query(format!("{key} is given twice")));
    }
    Ok(first.map(|(_, value)| value.into_owned()))
}
