//! The release: its build profile, its image, and the checks before it.

use std::path::Path;

use crate::world::in_repository;
use kubesvc_testkit::{helm, must};

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
    // The C library that the programs were linked with, or an older one.
    let build = dockerfile.lines().find_map(|line| line.strip_prefix("ARG BUILD_BASE=")).expect("a base");
    assert!(build.ends_with("-trixie") && base.contains("-debian13:"), "{build}, {base}");
    assert!(!dockerfile.contains("# syntax="), "a third image that nothing pins");
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

#[test]
fn image_is_built_for_two_platforms_from_all_manifests() {
    let dockerfile = read("Dockerfile");
    assert!(
        dockerfile.contains("FROM --platform=${BUILDPLATFORM} ${BUILD_BASE} AS build"),
        "it would be emulated"
    );
    for platform in ["amd64) triple=x86_64-unknown-linux-gnu", "arm64) triple=aarch64-unknown-linux-gnu"] {
        assert!(dockerfile.contains(platform), "{platform}");
    }
    let caches = dockerfile.matches("--mount=type=cache,").count();
    let of_one_platform = dockerfile.matches("--mount=type=cache,id=kubesvc-registry-${TARGETARCH},").count();
    assert!(caches > 0 && caches == of_one_platform, "{of_one_platform} of {caches}");
    for label in ["title", "description", "licenses", "version", "revision", "source", "url"] {
        assert!(dockerfile.contains(&format!("org.opencontainers.image.{label}=")), "{label}");
    }
    assert!(dockerfile.contains(&format!("ARG VERSION={}\n", env!("CARGO_PKG_VERSION"))));
    // The layer of dependencies needs every manifest, and an empty file for all that a manifest or Cargo finds.
    let mut packages = 0;
    for entry in must(std::fs::read_dir(in_repository("crates")).map_err(|e| e.to_string())) {
        let path = must(entry.map_err(|e| e.to_string())).path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(dockerfile.contains(&format!("COPY crates/{name}/Cargo.toml crates/{name}/\n")), "{name}");
        assert!(
            !path.join("build.rs").exists() || dockerfile.contains(&format!("crates/{name}/build")),
            "{name}"
        );
        packages += 1;
    }
    assert!(packages > 4, "{packages}");
    let manifest = read("Cargo.toml");
    for bench in manifest.split("[[bench]]\nname = \"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(dockerfile.contains(&format!("benches/{bench}")), "{bench}");
    }
}

#[test]
fn context_of_the_image_has_what_the_programs_include() {
    let ignored = read(".dockerignore");
    let kept: Vec<_> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in [".cargo", "Cargo.toml", "Cargo.lock", "LICENSE", "crates", "migrations", "proto", "src"] {
        assert!(kept.contains(&path), "{path}");
    }
    assert!(kept.contains(&"config/modes/agent/role.yaml"), "the plugin includes it");
    assert!(!kept.contains(&"tests") && !kept.contains(&"docs"), "{kept:?}");
}

#[test]
fn image_and_archives_have_the_licences_of_what_is_compiled_in() {
    let folder = must(kubesvc_testkit::folder::Folder::new("notices"));
    let file = folder.file("THIRD-PARTY-NOTICES");
    let run = std::process::Command::new("sh")
        .args(["packaging/notices.sh", &file.display().to_string()])
        .env("CARGO_NET_OFFLINE", "true")
        .current_dir(in_repository(""))
        .output();
    let run = must(run.map_err(|e| e.to_string()));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let notices = must(std::fs::read(&file).map_err(|e| e.to_string()));
    let notices = String::from_utf8_lossy(&notices);
    // The TLS of all programs, the database of one, the C library of an allocator, and no tool of the tests.
    for part in
        ["\nrustls 0.", "\nlibsqlite3-sys ", "\nring ", "jemalloc/COPYING", "Apache License", "MIT License"]
    {
        assert!(notices.contains(part), "{part:?}");
    }
    assert!(!notices.contains("\nproptest "), "only tests use it");
    let packages = notices.lines().skip(2).take_while(|line| !line.is_empty()).count();
    let texts = notices.matches("\n----------").count();
    assert!(packages > 150 && texts > 50, "{packages} packages, {texts} texts");

    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains("sh packaging/notices.sh /out/usr/share/doc/kubesvc/THIRD-PARTY-NOTICES"));
    assert!(read(".dockerignore").lines().any(|line| line == "!packaging/notices.sh"));
    assert!(read(".github/workflows/release.yml").contains("LICENSE THIRD-PARTY-NOTICES\n"));
    assert!(read("packaging/krew.sh").contains("{from: THIRD-PARTY-NOTICES, to: .}"));
}

#[test]
fn layers_of_the_image_have_no_time_of_their_build() {
    let dockerfile = read("Dockerfile");
    let (build, shipped) = dockerfile.rsplit_once("\nFROM ").expect("two stages");
    assert!(build.trim_end().ends_with("find /out -exec touch --no-dereference --date @0 {} +"), "{build}");
    let copied = shipped.lines().filter(|line| line.starts_with("COPY "));
    assert!(copied.clone().count() > 1 && copied.clone().all(|line| line.contains(" /out/")), "{shipped}");
    // An empty package has a doc comment too, or it is built with a warning each.
    assert!(build.contains("echo '//! Empty.' >") && build.contains("printf '//! Empty.\\n"), "{build}");
}

#[test]
fn image_check_without_docker_says_what_to_install() {
    // A machine without Docker.
    let folder = must(kubesvc_testkit::folder::Folder::new("few-programs"));
    for program in ["sed", "head"] {
        let link = std::os::unix::fs::symlink(format!("/usr/bin/{program}"), folder.file(program));
        must(link.map_err(|e| e.to_string()));
    }
    let run = std::process::Command::new("/bin/sh")
        .arg("packaging/image-check.sh")
        .env("PATH", folder.path())
        .current_dir(in_repository(""))
        .output();
    let run = must(run.map_err(|e| e.to_string()));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.lines().count() == 1 && said.contains("needs Docker") && said.contains("install"), "{said}");
    assert!(read("Makefile").contains("\nimage-check: "), "make image-check");
}

#[test]
fn release_workflow_passes_its_linter() {
    let actionlint = must(kubesvc_testkit::assets::checkers()).actionlint;
    let run = std::process::Command::new(actionlint)
        .args(["-no-color", "-shellcheck=", "-pyflakes=", &in_repository(".github/workflows/release.yml")])
        .output();
    let run = must(run.map_err(|e| e.to_string()));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

#[test]
fn workflows_name_each_action_by_commit_and_version() {
    let mut actions = 0;
    for entry in must(std::fs::read_dir(in_repository(".github/workflows")).map_err(|e| e.to_string())) {
        let path = must(entry.map_err(|e| e.to_string())).path();
        let workflow = must(std::fs::read_to_string(&path).map_err(|e| e.to_string()));
        for line in workflow.lines().filter(|line| line.contains("uses:")) {
            let (_, named) = line.split_once('@').expect("an action has a version");
            let (commit, version) = named.split_once(" # v").unwrap_or_default();
            assert!(
                commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()),
                "a tag can be moved: {line}"
            );
            let parts: Vec<_> = version.split('.').filter(|part| part.parse::<u32>().is_ok()).collect();
            assert_eq!(parts.len(), 3, "which version the commit is: {line}");
            actions += 1;
        }
    }
    assert!(actions > 10, "{actions}");
}

#[test]
fn manifest_for_krew_names_an_archive_with_its_digest_for_each_platform() {
    let version = env!("CARGO_PKG_VERSION");
    let folder = must(kubesvc_testkit::folder::Folder::new("krew"));
    let platforms = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];
    for platform in platforms {
        must(folder.write(&format!("kubectl-kubesvc-{version}-{platform}.tar.gz"), platform));
    }
    let script = in_repository("packaging/krew.sh");
    let path = folder.file("").display().to_string();
    let run = std::process::Command::new("sh").args([script.as_str(), version, "owner/name", &path]).output();
    let run = must(run.map_err(|e| e.to_string()));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let manifest: serde_json::Value =
        must(serde_saphyr::from_str(&String::from_utf8_lossy(&run.stdout)).map_err(|e| e.to_string()));
    assert_eq!(manifest["spec"]["version"], format!("v{version}"));
    must(folder.write("kubesvc.yaml", &String::from_utf8_lossy(&run.stdout)));
    let validator = must(kubesvc_testkit::assets::checkers()).validate_krew_manifest;
    // The archives are not published, so that they cannot be installed.
    let valid = std::process::Command::new(validator)
        .args(["-skip-install", "-manifest"])
        .arg(folder.file("kubesvc.yaml"))
        .output();
    let valid = must(valid.map_err(|e| e.to_string()));
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stderr));
    // The index asks for it; its validator does not.
    let short = manifest["spec"]["shortDescription"].as_str().unwrap_or_default();
    assert!((1..=50).contains(&short.len()) && !short.contains('\n'), "{short}");
    let each = manifest["spec"]["platforms"].as_array().expect("platforms");
    assert_eq!(each.len(), platforms.len());
    for (platform, one) in platforms.iter().zip(each) {
        let labels = &one["selector"]["matchLabels"];
        let named =
            format!("{}-{}", labels["os"].as_str().unwrap_or(""), labels["arch"].as_str().unwrap_or(""));
        assert_eq!(named, **platform);
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(platform));
        assert_eq!(one["sha256"], digest);
        assert!(one["uri"].as_str().is_some_and(|uri| uri.ends_with(&format!("{platform}.tar.gz"))), "{one}");
        assert_eq!(one["bin"], "kubectl-kubesvc");
    }
}

#[test]
fn charts_of_a_release_pull_its_image_and_link_to_its_runbooks() {
    let image = "registry.example.com/owner/name";
    let folder = must(kubesvc_testkit::folder::Folder::new("packages"));
    let packages = folder.file("").display().to_string();
    let version = env!("CARGO_PKG_VERSION");
    let pack = format!("sh packaging/charts.sh {image} {packages} Owner/name v{version}");
    must(helm::shell(Path::new("/dev/null"), &pack).ok());
    let runbooks = format!("https://github.com/Owner/name/blob/v{version}/docs/runbooks.md#");
    for (chart, values) in [("kubesvc", "replicas=1"), ("kubesvc-agent", "mode=spinnaker-service")] {
        let package = folder.file(&format!("{chart}-{version}.tgz")).display().to_string();
        let values = format!("{values},monitoring.enabled=true");
        let rendered = must(helm::run(None, ["template", chart, &package, "--set", &values]).ok());
        let images: Vec<_> =
            rendered.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
        assert!(
            !images.is_empty()
                && images.iter().all(|one| one.trim_matches('"') == format!("{image}:{version}")),
            "{chart}: {images:?}"
        );
        let links: Vec<_> =
            rendered.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
        assert!(
            !links.is_empty() && links.iter().all(|link| link.starts_with(&runbooks)),
            "{chart}: {links:?}"
        );
    }
}

#[test]
fn release_workflow_names_image_and_charts_in_lower_case() {
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("name=ghcr.io/${GITHUB_REPOSITORY,,}\""), "an owner's name may have capitals");
    for part in [
        "tags: ${{ steps.image.outputs.name }}:${{ steps.image.outputs.version }}\n",
        "name: ${{ steps.image.outputs.name }}\n",
        "IMAGE: ${{ needs.image.outputs.name }}\n",
        "sh packaging/charts.sh \"$IMAGE\" out \"$GITHUB_REPOSITORY\" \"$GITHUB_REF_NAME\"\n",
        "charts=${IMAGE%/*}/charts\n",
    ] {
        assert!(workflow.contains(part), "{part:?} is missing");
    }
    for name in ["ghcr.io/${{", "ghcr.io/$OWNER", "github.repository_owner", "helm package"] {
        assert!(!workflow.contains(name), "{name} passes the name in lower case by");
    }
}
