//! Pages of a list.

use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::error::RestError;
use super::extract::single_value;
use super::view::AccountItem;

const DEFAULT_LIMIT: u64 = 100;
const MAX_LIMIT: u64 = 1000;
/// Largest page number: clients can read it back as a signed 64-bit integer.
const MAX_PAGE: u64 = i64::MAX as u64;

/// Page of a list that the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
    /// Page number, from 1.
    #[param(required = false, minimum = 1, maximum = 9223372036854775807i64, default = 1)]
    page: u64,
    /// Maximum number of items per page.
    #[param(required = false, minimum = 1, maximum = 1000, default = 100)]
    limit: u64,
}

/// A page of accounts.
#[derive(Serialize, ToSchema)]
pub(super) struct AccountPage {
    /// Accounts, sorted by name.
    items: Vec<AccountItem>,
    /// Page number, from 1.
    page: u64,
    /// Maximum number of items per page.
    limit: u64,
    /// Total number of accounts.
    total: usize,
}

impl Paging {
    /// Parses `page` and `limit` of a query.
    pub(super) fn read(query: Option<&str>) -> Result<Self, RestError> {
        let page = number(query, "page", 1, 1..=MAX_PAGE)?;
        let limit = number(query, "limit", DEFAULT_LIMIT, 1..=MAX_LIMIT)?;
        Ok(Self { page, limit })
    }

    /// A page with these items, out of `total`.
    pub(super) fn page(self, items: Vec<AccountItem>, total: usize) -> AccountPage {
        AccountPage { items, page: self.page, limit: self.limit, total }
    }

    /// Returns the items of this page out of the whole list.
    pub(super) fn cut<T>(self, all: &[T]) -> &[T] {
        let start = (self.page - 1).saturating_mul(self.limit);
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(all.len());
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        &all[start..start.saturating_add(limit).min(all.len())]
    }
}

fn number(
    query: Option<&str>,
    key: &str,
    default: u64,
    allowed: std::ops::RangeInclusive<u64>,
) -> Result<u64, RestError> {
    let Some(text) = single_value(query, key)? else { return Ok(default) };
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        let most = if *allowed.end() == MAX_PAGE { String::new() } else { format!(" to {}", allowed.end()) };
        RestError::bad_request(format!("{key} must be a number from {}{most}", allowed.start()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_from_1_and_end_empty() {
        let all: Vec<u32> = (0..5).collect();
        let cut = |query| Paging::read(Some(query)).expect("good").cut(&all);
        assert_eq!(cut("page=1&limit=2"), [0, 1]);
        assert_eq!(cut("page=3&limit=2"), [4]);
        assert_eq!(cut("page=4&limit=2"), [0; 0]);
        assert_eq!(cut("page=9223372036854775807&limit=1000"), [0; 0]);
        assert_eq!(cut(""), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for query in [
            "page=0",
            "page=-1",
            "page=x",
            "page=",
            "limit=0",
            "limit=1001",
            "limit=1.5",
            "page=99999999999999999999",
            "page=9223372036854775808",
            "page=1&page=1",
        ] {
            let problem = Paging::read(Some(query)).expect_err(query);
            assert_eq!(problem.status.as_u16(), 400);
        }
    }
}
