use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;

fn open(path: &Path) -> Result<Folder, String> {
    Folder::open(path, Make::All(0o700)).map_err(|error| error.to_string())
}

#[test]
fn folders_are_made_on_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir.path().join("a/./b/../c")).unwrap();
    assert_eq!(folder.path(), fs::canonicalize(dir.path()).unwrap().join("a/c"));
    assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777, 0o700);
    let missing = Folder::open(&dir.path().join("x/y"), Make::Last(0o700)).unwrap_err();
    assert!(matches!(missing, FolderError::Io { ref source, .. } if source.kind() == io::ErrorKind::NotFound));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(open(&dir.path().join("file")).unwrap_err().contains("Not a directory"));
}

/// What is above a temporary folder may be on any file system, or of another user.
#[test]
fn names_are_brought_to_disk_up_to_the_root() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir.path().join("a/b/c")).unwrap().sync_parents().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o300)).unwrap();
    let synced = open(&dir.path().join("a/b")).unwrap().sync_parents();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    synced.unwrap();
    open(Path::new("/")).unwrap().sync_parents().unwrap();
}

#[test]
fn own_links_are_followed_and_loops_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("target")).unwrap();
    symlink(path("target"), path("absolute")).unwrap();
    symlink("absolute/../target", path("relative")).unwrap();
    symlink("loop", path("loop")).unwrap();
    let target = fs::canonicalize(path("target")).unwrap();
    for link in ["absolute", "relative"] {
        assert_eq!(open(&path(link)).unwrap().path(), target);
    }
    assert_eq!(open(&path("relative/new")).unwrap().path(), target.join("new"));
    assert!(open(&path("loop")).unwrap_err().contains("Too many levels"));
}

/// As a kubelet mounts an emptyDir: the pod's containers alone see it.
#[test]
fn the_root_of_a_volume_may_have_any_mode() {
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, Permissions::from_mode(0o777)).unwrap();
    open(&volume).unwrap_err();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k,mode=0777", "volume"]).arg(&volume).status();
    if !mount.unwrap().success() {
        use io::Write;
        let _ = writeln!(io::stderr(), "cannot run: the_root_of_a_volume_may_have_any_mode: needs root that may mount");
        return;
    }
    let _mounted = Mounted(volume.clone());
    let folder = open(&volume).unwrap();
    folder.open_file("file", OFlags::CREATE).unwrap();
    assert_eq!(folder.names().unwrap(), ["file"]);
    // No mount decides who can reach a folder in it.
    fs::create_dir(volume.join("below")).unwrap();
    fs::set_permissions(volume.join("below"), Permissions::from_mode(0o777)).unwrap();
    open(&volume.join("below")).unwrap_err();
    folder.close_to_others().unwrap();
    assert_eq!(fs::metadata(&volume).unwrap().permissions().mode() & 0o7777, 0o700);
}
