use std::path::{Path, PathBuf};

use super::*;

fn allowed() -> Vec<PathBuf> {
    ["/opt/armory", "/kubeconfigfiles/", "/etc/kubesvc"].map(PathBuf::from).to_vec()
}

#[test]
fn a_file_below_an_allowed_folder_is_taken() {
    for path in [
        "/opt/armory/dev",
        "/opt/armory/a/b.yaml",
        "/kubeconfigfiles/..data/dev",
        "//opt//armory/./dev",
        "/etc/kubesvc/ä b",
    ] {
        assert_eq!(vet_file_path(path, &allowed()), Ok(Path::new(path)));
    }
}

#[test]
fn any_other_path_is_refused_with_the_folders_that_are_allowed() {
    for (path, why) in [
        ("", "empty"),
        ("opt/armory/dev", "absolute"),
        ("~/.kube/config", "absolute"),
        ("/opt/armory/../../etc/shadow", "`..`"),
        ("/opt/armory/..", "`..`"),
        ("/opt/armory/dev\0.yaml", "NUL"),
        ("/opt/armory/dev\n", "control"),
        ("/opt/armory", "outside"),
        ("/opt/armory/", "folder"),
        ("/opt/armory/.", "folder"),
        ("/opt/armory-of-another/dev", "outside"),
        ("/opt/Armory/dev", "outside"),
        ("/etc/kubernetes/admin.conf", "outside"),
        ("/", "folder"),
    ] {
        let refusal = vet_file_path(path, &allowed()).unwrap_err();
        assert_eq!(refusal.field(), "kubeconfig.file", "{path:?}");
        assert!(refusal.to_string().contains(why), "{path:?}: {refusal}");
        assert!(refusal.to_string().contains("/opt/armory, /kubeconfigfiles/, /etc/kubesvc"), "{refusal}");
        assert!(!refusal.is_exec());
    }
}

#[test]
fn no_folder_and_no_absolute_folder_allow_nothing() {
    for allowed in [vec![], vec![PathBuf::new()], vec![PathBuf::from("opt")]] {
        assert!(vet_file_path("/opt/armory/dev", &allowed).is_err(), "{allowed:?}");
    }
    assert!(vet_file_path("/opt/x", &[]).unwrap_err().to_string().contains("allows no folder"));
}
