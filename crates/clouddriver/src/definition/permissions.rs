//! Who may see and change an account: `permissions` and `requiredGroupMembership` of an entry.
//!
//! No conversion makes an account accessible to more people than Clouddriver did: what cannot be said in a spec is
//! dropped only if rights for READ or WRITE remain, and refused otherwise.

use serde_json::{Map, Value, json};

use super::fields::{as_text, listed};
use super::report::{EntryProblem, Report};

const PERMISSIONS: &str = "permissions";
const GROUPS: &str = "requiredGroupMembership";

/// Rights of an account in a spec.
const USED: [&str; 2] = ["READ", "WRITE"];
/// Rights of Fiat that mean nothing for an account.
const WITHOUT_EFFECT: [&str; 2] = ["EXECUTE", "CREATE"];

/// Replaces both fields by their effect: role names trimmed, rights in upper case, groups only if `permissions` has no
/// role.
pub(super) fn settle(
    used: &mut Map<String, Value>,
    without_effect: &mut Map<String, Value>,
    problems: &mut Vec<EntryProblem>,
    report: &mut Report,
) {
    let permissions = used.remove(PERMISSIONS);
    let groups = used.remove(GROUPS);
    let Some(rights) = rights(permissions, problems, report) else { return };
    let restricts = rights.values().any(has_roles);
    let (effective, unused): (Map<_, _>, Map<_, _>) =
        rights.into_iter().partition(|(right, _)| USED.contains(&right.as_str()));
    if restricts && !effective.values().any(has_roles) {
        problems.push(EntryProblem::field(
            "permissions must name a role for READ or WRITE: without one, everyone could use the account",
        ));
    }
    if !unused.is_empty() {
        without_effect.insert(PERMISSIONS.to_owned(), Value::Object(unused));
    }
    if restricts {
        used.insert(PERMISSIONS.to_owned(), Value::Object(effective));
    }
    let Some(groups) = groups else { return };
    if restricts {
        report.warn("requiredGroupMembership has no effect beside permissions");
        without_effect.insert(GROUPS.to_owned(), groups);
        return;
    }
    match trimmed(GROUPS, listed(groups), report) {
        Some(groups) if groups.is_empty() => {}
        Some(groups) => drop(used.insert(PERMISSIONS.to_owned(), json!({"READ": groups, "WRITE": groups}))),
        None => problems.push(EntryProblem::field("requiredGroupMembership must be a list of role names")),
    }
}

fn has_roles(roles: &Value) -> bool {
    roles.as_array().is_some_and(|roles| !roles.is_empty())
}

/// The rights by their names. `None` if they cannot be read.
fn rights(
    given: Option<Value>,
    problems: &mut Vec<EntryProblem>,
    report: &mut Report,
) -> Option<Map<String, Value>> {
    let maps = match given {
        None => Vec::new(),
        Some(Value::Object(rights)) => vec![rights],
        Some(Value::Array(items)) => {
            report.warn("permissions is a list, which Clouddriver does not read; its parts count together");
            items
                .into_iter()
                .map(|item| if let Value::Object(rights) = item { rights } else { bad_item() })
                .collect()
        }
        Some(_) => vec![bad_item()],
    };
    let mut rights: Map<String, Value> = Map::new();
    let before = problems.len();
    for (right, roles) in maps.into_iter().flatten() {
        let known = USED.iter().chain(&WITHOUT_EFFECT).find(|known| known.eq_ignore_ascii_case(&right));
        let field = format!("permissions.{}", right.chars().take(32).collect::<String>());
        match (known, trimmed(&field, listed(roles), report)) {
            (Some(known), Some(roles)) => {
                let all = rights.entry(*known).or_insert_with(|| json!([]));
                all.as_array_mut()
                    .into_iter()
                    .for_each(|all| all.extend(roles.iter().cloned().map(Value::from)));
            }
            (None, _) if right.is_empty() => problems.push(EntryProblem::field(
                "permissions must be an object of lists of roles, under READ and WRITE",
            )),
            (None, _) => problems.push(EntryProblem::field(format!("{field} must be READ or WRITE"))),
            (_, None) => problems.push(EntryProblem::field(format!("{field} must be a list of role names"))),
        }
    }
    (problems.len() == before).then_some(rights)
}

/// Stands for what is no object of rights.
fn bad_item() -> Map<String, Value> {
    [(String::new(), Value::Null)].into_iter().collect()
}

/// Role names without the blanks around them, as Fiat compares them. `None` if it is no list of texts.
fn trimmed(field: &str, roles: Value, report: &mut Report) -> Option<Vec<String>> {
    let Value::Array(roles) = roles else { return None };
    let mut names = Vec::with_capacity(roles.len());
    for role in &roles {
        let text = as_text(role)?;
        if role.is_number() {
            report.warn(format!("{field}: a role name that is a number was read as text"));
        }
        let name = text.trim();
        if name.len() != text.len() {
            report.warn(format!("{field}: blanks around role names were removed"));
        }
        if name.is_empty() {
            report.warn(format!("{field}: an empty role name was dropped"));
        } else {
            names.push(name.to_owned());
        }
    }
    Some(names)
}
