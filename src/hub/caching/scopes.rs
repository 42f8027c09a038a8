//! Declared scopes of an account, by their agent's numbers. Pure.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use kubesvc_core::cache::keys::{ScopeKey, ScopeKeyError};
use kubesvc_core::cache::object_row::{RowError, RowNaming};
use kubesvc_core::wire::common::Scope;
use kubesvc_core::wire::events::ScopeDeclaration;

use super::row_mapping::RowMapper;

/// Maximum number of scopes of one account.
pub(crate) const MAX_SCOPES: usize = 5_000;
/// Maximum length of a shape and of a filter, in bytes: the size of their columns.
const MAX_DIGEST_BYTES: usize = 64;

/// Reason to refuse the declaration of a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScopeError {
    #[error("scope {0} has no kind")]
    NoKind(u32),
    #[error("scope {0} has a shape of {1} bytes; it must have 1 to {MAX_DIGEST_BYTES}")]
    Shape(u32, usize),
    #[error("scope {0} has a filter of {1} bytes; it may have {MAX_DIGEST_BYTES}")]
    Filter(u32, usize),
    #[error("scope {id} is {now}, and was declared as {before}; give each scope a number of its own")]
    Renumbered { id: u32, before: String, now: String },
    #[error("more than {MAX_SCOPES} scopes; watch fewer kinds or namespaces")]
    TooMany,
    #[error("scope {0} was not declared")]
    Undeclared(u32),
    #[error("a problem is about a scope without a kind")]
    NoProblemKind,
    #[error(transparent)]
    NoScope(#[from] ScopeKeyError),
}

/// A scope as the agent watches it.
pub(crate) struct DeclaredScope {
    pub(crate) id: u32,
    pub(crate) key: ScopeKey,
    pub(crate) scope: Scope,
    pub(crate) shape: String,
    pub(crate) filter: String,
    rows: OnceLock<Result<RowNaming, RowError>>,
}

impl fmt::Debug for DeclaredScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {} {}", self.id, self.key)
    }
}

impl PartialEq for DeclaredScope {
    fn eq(&self, other: &Self) -> bool {
        let parts = |scope: &Self| (scope.id, scope.scope.clone(), scope.shape.clone(), scope.filter.clone());
        parts(self) == parts(other)
    }
}

/// Whether the objects of a scope are Namespaces.
pub(crate) fn has_namespaces(key: &ScopeKey) -> bool {
    key.group.is_empty() && key.kind == "Namespace"
}

impl DeclaredScope {
    fn new(declaration: ScopeDeclaration) -> Result<Self, ScopeError> {
        let ScopeDeclaration { scope_id: id, scope, shape, filter } = declaration;
        let scope = scope.filter(|scope| !scope.kind.is_empty()).ok_or(ScopeError::NoKind(id))?;
        if shape.is_empty() || shape.len() > MAX_DIGEST_BYTES {
            return Err(ScopeError::Shape(id, shape.len()));
        }
        if filter.len() > MAX_DIGEST_BYTES {
            return Err(ScopeError::Filter(id, filter.len()));
        }
        Ok(Self { id, key: ScopeKey::from(&scope), scope, shape, filter, rows: OnceLock::new() })
    }

    /// Naming of the scope's rows, created once.
    pub(crate) fn rows(&self, account: &str, mapper: &dyn RowMapper) -> Result<&RowNaming, RowError> {
        self.rows.get_or_init(|| mapper.naming(account, &self.scope)).as_ref().map_err(Clone::clone)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DeclaredScopes {
    by_id: HashMap<u32, Arc<DeclaredScope>>,
}

impl DeclaredScopes {
    /// Adds a scope, or declares it again under its number.
    pub(crate) fn declare(
        &mut self,
        declaration: ScopeDeclaration,
    ) -> Result<Arc<DeclaredScope>, ScopeError> {
        let scope = Arc::new(DeclaredScope::new(declaration)?);
        match self.by_id.get(&scope.id) {
            Some(before) if before.key != scope.key => {
                let (before, now) = (before.key.to_string(), scope.key.to_string());
                return Err(ScopeError::Renumbered { id: scope.id, before, now });
            }
            None if self.by_id.len() >= MAX_SCOPES => return Err(ScopeError::TooMany),
            _ => {}
        }
        self.by_id.insert(scope.id, Arc::clone(&scope));
        Ok(scope)
    }

    pub(crate) fn get(&self, id: u32) -> Result<&Arc<DeclaredScope>, ScopeError> {
        self.by_id.get(&id).ok_or(ScopeError::Undeclared(id))
    }

    /// Removes the scopes with this key, except for `kept`. Returns their numbers.
    pub(crate) fn remove(&mut self, key: &ScopeKey, kept: &HashSet<u32>) -> Vec<u32> {
        let gone = |scope: &&Arc<DeclaredScope>| scope.key == *key && !kept.contains(&scope.id);
        let removed: Vec<_> = self.by_id.values().filter(gone).map(|scope| scope.id).collect();
        removed.iter().for_each(|id| drop(self.by_id.remove(id)));
        removed
    }

    /// All scopes, ordered by number.
    pub(crate) fn all(&self) -> Vec<Arc<DeclaredScope>> {
        let mut all: Vec<_> = self.by_id.values().cloned().collect();
        all.sort_unstable_by_key(|scope| scope.id);
        all
    }

    /// Keys of the declared scopes.
    pub(crate) fn keys(&self) -> HashSet<&ScopeKey> {
        self.by_id.values().map(|scope| &scope.key).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declaration(id: u32, namespace: &str, kind: &str) -> ScopeDeclaration {
        let scope = Scope { kind: kind.into(), namespace: namespace.into(), ..Scope::default() };
        ScopeDeclaration { scope_id: id, scope: Some(scope), shape: "s".into(), filter: String::new() }
    }

    #[test]
    fn a_number_stands_for_one_scope_until_it_is_removed() {
        let mut scopes = DeclaredScopes::default();
        let pods = scopes.declare(declaration(1, "", "Pod")).expect("it is new");
        scopes.declare(declaration(1, "", "Pod")).expect("it is the same");
        let error = scopes.declare(declaration(1, "a", "Pod")).expect_err("it is another");
        assert_eq!(
            error.to_string(),
            "scope 1 is a:.Pod, and was declared as :.Pod; give each scope a number of its own"
        );
        assert_eq!(scopes.get(2), Err(ScopeError::Undeclared(2)));
        assert!(scopes.remove(&pods.key, &HashSet::from([1])).is_empty());
        assert_eq!(scopes.remove(&pods.key, &HashSet::new()), [1]);
        assert!(scopes.declare(declaration(1, "a", "Pod")).is_ok());
    }

    #[test]
    fn a_scope_without_kind_or_with_a_digest_of_another_size_is_refused() {
        let mut scopes = DeclaredScopes::default();
        assert_eq!(scopes.declare(declaration(1, "", "")), Err(ScopeError::NoKind(1)));
        let nothing = ScopeDeclaration { scope: None, ..declaration(2, "", "Pod") };
        assert_eq!(scopes.declare(nothing), Err(ScopeError::NoKind(2)));
        let shape = |shape: &str| ScopeDeclaration { shape: shape.into(), ..declaration(3, "", "Pod") };
        assert_eq!(scopes.declare(shape("")), Err(ScopeError::Shape(3, 0)));
        assert_eq!(scopes.declare(shape(&"x".repeat(65))), Err(ScopeError::Shape(3, 65)));
        let filter = ScopeDeclaration { filter: "x".repeat(65), ..declaration(4, "", "Pod") };
        assert_eq!(scopes.declare(filter), Err(ScopeError::Filter(4, 65)));
    }

    #[test]
    fn the_number_of_scopes_is_bounded() {
        let mut scopes = DeclaredScopes::default();
        let most = u32::try_from(MAX_SCOPES).expect("few");
        for id in 0..most {
            scopes.declare(declaration(id, "", &format!("Kind{id}"))).expect("there is room");
        }
        assert_eq!(scopes.declare(declaration(most, "", "More")), Err(ScopeError::TooMany));
        assert!(scopes.declare(declaration(0, "", "Kind0")).is_ok());
        assert_eq!((scopes.len(), scopes.all()[7].id), (MAX_SCOPES, 7));
    }
}
