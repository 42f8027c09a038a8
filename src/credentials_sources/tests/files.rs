use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn source(paths: &[&Path]) -> FileSource {
    let vars = Arc::new(BTreeMap::from([("ZONE".to_owned(), "eu".to_owned())]));
    let paths = paths.iter().map(|path| path.to_path_buf()).collect();
    FileSource::new(paths, TextReader::new(Arc::from("yaml"), Vec::new(), vars))
}

fn accounts(names: &[&str]) -> String {
    let list: String = names.iter().map(|name| format!("  - name: {name}\n")).collect();
    format!("kubernetes:\n  accounts:\n{list}")
}

/// A mounted ConfigMap: `..data` leads to the folder of the current version.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new() -> Self {
        let mount = Self(tempfile::tempdir().expect("a folder"));
        symlink("..data/clouddriver.yml", mount.0.path().join("clouddriver.yml")).expect("a link");
        mount
    }

    fn swap(&self, version: &str, text: &str) {
        let folder = self.0.path().join(version);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("clouddriver.yml"), text).expect("a file");
        let next = self.0.path().join("..data_tmp");
        symlink(version, &next).expect("a link");
        fs::rename(next, self.0.path().join("..data")).expect("swapped");
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("clouddriver.yml")
    }
}

#[tokio::test]
async fn swapped_links_and_changes_in_place_are_seen() {
    let mount = Mount::new();
    mount.swap("..v1", &accounts(&["a", "${ZONE}-1"]));
    let source = source(&[&mount.path()]);
    let first = source.read().await.expect("read");
    assert_eq!(names(&first), ["a", "eu-1"]);
    assert!(Arc::ptr_eq(&first, &source.read().await.expect("read")), "unchanged");
    mount.swap("..v2", &accounts(&["b"]));
    assert_eq!(names(&source.read().await.expect("read")), ["b"]);
    // Of the same length, in the same second.
    fs::write(mount.path(), accounts(&["c"])).expect("written in place");
    assert_eq!(names(&source.read().await.expect("read")), ["c"]);
}

#[tokio::test]
async fn file_that_cannot_be_read_makes_the_source_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    let (base, local) = (folder.path().join("clouddriver.yml"), folder.path().join("clouddriver-local.yml"));
    fs::write(&base, accounts(&["base"])).expect("written");
    let source = source(&[&local, &base]);
    let why = source.read().await.expect_err("it may be the one that counts").to_string();
    assert!(why.contains("clouddriver-local.yml cannot be read: it does not exist"), "{why}");
    fs::write(&local, "kubernetes: {}\nkubernetes: {}\n").expect("written");
    let why = source.read().await.expect_err("a key twice").to_string();
    assert!(why.contains("clouddriver-local.yml, line 2: the key kubernetes was already given"), "{why}");
    fs::write(&local, accounts(&["local"])).expect("written");
    assert_eq!(names(&source.read().await.expect("read")), ["local"]);
    fs::write(&local, [0xff, 0xfe]).expect("written");
    assert!(source.read().await.expect_err("no text").to_string().contains("not UTF-8"));
    fs::remove_file(&local).expect("removed");
    fs::create_dir(&local).expect("a folder");
    assert!(source.read().await.expect_err("a folder").to_string().contains("no regular file"));
    fs::remove_dir(&local).expect("removed");
    let large = fs::File::create(&local).expect("a file");
    large.set_len((16 << 20) + 1).expect("sparse");
    assert!(source.read().await.expect_err("too large").to_string().contains("more than 16777216 bytes"));
    fs::remove_file(&local).expect("removed");
    nix::unistd::mkfifo(&local, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(source.read().await.expect_err("a pipe").to_string().contains("no regular file"));
}
