//! Engines on a real disk, and the errors for engines that do not exist.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::engine::{Engines, NoopEngine, ResolvedSecret};
use super::file::FileEngine;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::spec::OWN_SOURCE;

const SECRET: &str = "S3CRET";

fn engines(folders: &[&Path]) -> Engines {
    let folders = folders.iter().map(|folder| folder.to_path_buf()).collect();
    Engines::new(vec![Box::new(NoopEngine), Box::new(FileEngine::new(folders))])
}

async fn resolve(engines: &Engines, reference: &str) -> Result<ResolvedSecret, Failure> {
    engines.resolve(reference, "own", OWN_SOURCE).await
}

async fn failure(engines: &Engines, reference: &str) -> Failure {
    let failure = resolve(engines, reference).await.err().expect(reference);
    assert!(!failure.message.contains(SECRET), "{failure}");
    failure
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_named_with_those_that_are() {
    let engines = engines(&[]);
    for engine in
        ["s3", "gcs", "secrets-manager", "google-secrets-manager", "vault", "of-tomorrow", "NOOP", "Noop"]
    {
        for reference in [format!("encrypted:{engine}!v:{SECRET}"), format!("secret://{engine}?v={SECRET}")] {
            let failure = failure(&engines, &reference).await;
            assert_eq!(failure.class, FailureClass::BadReference);
            assert!(failure.message.contains(&format!("{engine:?}")), "{failure}");
            assert!(failure.message.contains("there are file, noop"), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_reference_that_is_written_wrong_is_refused_without_its_value() {
    let engines = engines(&[]);
    for reference in
        ["encrypted:noop!S3CRET", "encrypted:noop!v:a!S3CRET:b", "S3CRET", "encrypted:noop!w:S3CRET"]
    {
        let failure = failure(&engines, reference).await;
        assert_eq!(failure.class, FailureClass::BadReference);
        assert!(failure.message.starts_with("spec.kubeconfig.reference: "), "{failure}");
    }
}

#[tokio::test]
async fn noop_is_the_value_itself() {
    for reference in ["encrypted:noop!v:a:b", "encryptedFile:noop!v:a:b", "secret://noop?v=a%3Ab"] {
        let found = resolve(&engines(&[]), reference).await.unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(found.content.expose_secret(), b"a:b");
        assert_eq!(found.version, None);
    }
}

#[tokio::test]
async fn a_file_below_a_folder_is_read_and_its_change_is_another_version() {
    let folder = folder();
    let path = folder.path().join("prod");
    fs::write(&path, "one").expect("written");
    let engines = engines(&[folder.path()]);
    let reference = format!("encryptedFile:file!p:{}", path.display());
    let first = resolve(&engines, &reference).await.unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(first.content.expose_secret(), b"one");
    fs::write(&path, "other").expect("written");
    let second = resolve(&engines, &reference).await.unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(second.content.expose_secret(), b"other");
    assert!(first.version.is_some() && first.version != second.version);
}

#[tokio::test]
async fn links_are_followed_as_far_as_the_folders_go() {
    let (inside, outside) = (folder(), folder());
    fs::create_dir(inside.path().join("..data")).expect("made");
    fs::write(inside.path().join("..data/prod"), "good").expect("written");
    fs::write(outside.path().join("shadow"), SECRET).expect("written");
    symlink("..data/prod", inside.path().join("prod")).expect("linked");
    symlink(outside.path().join("shadow"), inside.path().join("out")).expect("linked");
    symlink(outside.path(), inside.path().join("folder")).expect("linked");
    let engines = engines(&[inside.path()]);
    let at = |name: &str| format!("encrypted:file!p:{}/{name}", inside.path().display());
    assert!(resolve(&engines, &at("prod")).await.is_ok(), "as Kubernetes mounts a Secret");
    for name in ["out", "folder/shadow"] {
        let failure = failure(&engines, &at(name)).await;
        assert_eq!(failure.class, FailureClass::BadReference);
        assert!(failure.message.contains("leads out of"), "{failure}");
    }
}

#[tokio::test]
async fn what_is_no_file_below_a_folder_is_refused() {
    let (inside, outside) = (folder(), folder());
    fs::create_dir(inside.path().join("sub")).expect("made");
    fs::write(inside.path().join("large"), vec![b'x'; 256 * 1024 + 1]).expect("written");
    fs::write(inside.path().join("fits"), vec![b'x'; 256 * 1024]).expect("written");
    let pipe = Command::new("mkfifo").arg(inside.path().join("pipe")).status().expect("mkfifo is there");
    assert!(pipe.success());
    let engines = engines(&[inside.path()]);
    let (here, there) = (inside.path().display().to_string(), outside.path().display().to_string());
    let cases = [
        (format!("{here}/sub"), FailureClass::BadReference, "no regular file"),
        (format!("{here}/pipe"), FailureClass::BadReference, "no regular file"),
        (format!("{here}/large"), FailureClass::BadKubeconfig, "256 KiB"),
        (format!("{here}/none"), FailureClass::CredentialMissing, "is not there"),
        (format!("{here}/../x"), FailureClass::BadReference, "without .."),
        (format!("{here}x/y"), FailureClass::BadReference, "kubesvc.secrets.folders"),
        (format!("{there}/x"), FailureClass::BadReference, "kubesvc.secrets.folders"),
        ("relative".to_owned(), FailureClass::BadReference, "absolute"),
        ("/dev/zero".to_owned(), FailureClass::BadReference, "kubesvc.secrets.folders"),
    ];
    for (path, class, said) in cases {
        let failure = failure(&engines, &format!("encrypted:file!p:{path}")).await;
        assert_eq!(failure.class, class, "{failure}");
        assert!(failure.message.contains(said), "{failure}");
    }
    assert!(resolve(&engines, &format!("encrypted:file!p:{here}/fits")).await.is_ok());
}

#[tokio::test]
async fn without_folders_the_engine_is_off_and_the_setting_is_named() {
    let failure = failure(&engines(&[]), "encrypted:file!p:/etc/hostname").await;
    assert_eq!(failure.class, FailureClass::BadReference);
    assert!(failure.message.contains("kubesvc.secrets.folders"), "{failure}");
}
