//! The release: its build profile, its image, and the checks before it.

use crate::world::in_repository;
use kubesvc_testkit::must;

fn read(path: &str) -> String {
    must(std::fs::read_to_string(in_repository(path)).map_err(|error| format!("{path}: {error}")))
}

#[test]
fn release_build_has_overflow_checks() {
    let manifest = read("Cargo.toml");
    let release = manifest.split_once("[profile.release]").expect("the profile is there").1;
    let release = release.split("\n[").next().unwrap_or_default();
    assert!(release.lines().any(|line| line == "overflow-checks = true"), "{release}");
}

#[test]
fn image_has_no_shell_and_runs_unprivileged() {
    let dockerfile = read("Dockerfile");
    let (_, shipped) = dockerfile.rsplit_once("\nFROM ").expect("two stages");
    assert!(shipped.starts_with("${RUNTIME_BASE}\n"), "{shipped}");
    let base = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUNTIME_BASE=")).expect("a base");
    assert!(base.contains("/distroless/") && base.contains(":nonroot"), "{base}");
    assert!(shipped.lines().all(|line| !line.starts_with("RUN ")), "nothing there could run it:\n{shipped}");
    assert!(shipped.contains("\nUSER 65532:65532\n"), "{shipped}");
}

#[test]
fn lint_checks_dependency_rules() {
    let makefile = read("Makefile");
    let recipe = makefile.split_once("\nlint:").expect("there is a lint").1;
    let recipe = recipe.split("\n\n").next().unwrap_or_default();
    assert!(recipe.contains("$(DENY) ") && recipe.contains("licenses bans sources"), "{recipe}");
    assert!(recipe.contains("advisories.sh"), "{recipe}");
}
