use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn group() -> GroupName {
    "db".parse().unwrap()
}

fn options(path: &Path) -> TokenOptions {
    TokenOptions { control_token: Some(path.to_owned()) }
}

#[test]
fn a_token_is_created_once_and_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db.token");
    let first = options(&path).load(&group()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(written.trim().len(), 2 * TOKEN_SIZE);
    let second = options(&path).load(&group()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), written, "the file has been touched");
    assert!(second.admits(&first.bearer()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    assert!(!format!("{first:?}").contains(written.trim()));
}

#[test]
fn processes_that_start_together_share_one_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db.token");
    let loaders: Vec<_> = (0..16)
        .map(|_| {
            let options = options(&path);
            std::thread::spawn(move || options.load(&group()).unwrap().bearer())
        })
        .collect();
    let mut shown: Vec<String> = loaders.into_iter().map(|loader| loader.join().unwrap()).collect();
    shown.dedup();
    assert_eq!(shown.len(), 1);
}

#[test]
fn invalid_token_files_are_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db.token");
    let good = "0123456789abcdef".repeat(4);
    for (content, mode, words) in [
        ("", 0o600, "it is empty"),
        ("\n \n", 0o600, "it is empty"),
        ("too short", 0o600, "it is not one word"),
        ("tooshort", 0o600, "it has 8 characters, and 32 are needed"),
        (good.as_str(), 0o640, "its mode is 0640 instead of 0600"),
        (good.as_str(), 0o604, "its mode is 0604 instead of 0600"),
        (&good.repeat(100), 0o600, "it is longer than 1024 bytes"),
    ] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = options(&path).load(&group()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("db.token") && error.contains("remove the file"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "the file has been touched");
    }
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    let error = options(&path).load(&group()).unwrap_err().to_string();
    assert!(error.contains("read control token file"), "{error}");
    let error = options(&folder.path().join("no/such/folder")).load(&group()).unwrap_err().to_string();
    assert!(error.contains("create control token file") && error.contains("--control-token"), "{error}");
}

#[test]
fn only_the_whole_token_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let token = options(&folder.path().join("db.token")).load(&group()).unwrap();
    let digits = token.digits();
    assert!(token.admits(&format!("Bearer {digits}")));
    let changed = |at: usize| {
        let mut bytes = digits.clone().into_bytes();
        bytes[at] ^= 1;
        String::from_utf8(bytes).unwrap()
    };
    let mut wrong = vec![String::new(), digits[1..].to_owned(), format!("{digits}0"), changed(0), changed(63)];
    wrong = wrong.into_iter().map(|digits| format!("Bearer {digits}")).collect();
    wrong.extend([String::new(), "Bearer".to_owned(), digits.clone(), format!("Basic {digits}")]);
    for shown in wrong {
        assert!(!token.admits(&shown), "{shown}");
    }
}

#[test]
fn a_proof_binds_nonce_address_and_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = options(&folder.path().join("db.token")).load(&group()).unwrap();
    let other = options(&folder.path().join("other.token")).load(&group()).unwrap();
    let (here, there): (SocketAddr, SocketAddr) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
    let proof = token.proof("abc", here).unwrap();
    assert!(token.is_proof(proof.as_bytes(), "abc", here));
    assert!(!token.is_proof(proof.as_bytes(), "abd", here) && !token.is_proof(proof.as_bytes(), "abc", there));
    assert!(!other.is_proof(proof.as_bytes(), "abc", here) && !token.is_proof(b"", "abc", here));
    assert_eq!((token.proof("", here), token.proof(&"x".repeat(65), here)), (None, None));
    assert!(!proof.contains(&token.digits()));
}

#[test]
fn a_changed_token_is_reloaded_and_a_deleted_one_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db.token");
    let token = options(&path).load(&group()).unwrap();
    assert_eq!(token.look().unwrap(), None);
    fs::remove_file(&path).unwrap();
    assert_eq!(token.look().unwrap(), Some("put back"));
    assert!(options(&path).load(&group()).unwrap().admits(&token.bearer()));
    let (before, renewed) = (token.bearer(), "f".repeat(64));
    fs::write(&path, &renewed).unwrap();
    assert_eq!(token.look().unwrap(), Some("reloaded"));
    assert!(token.admits(&format!("Bearer {renewed}")) && !token.admits(&before));
    fs::write(&path, "").unwrap();
    assert!(token.look().is_err() && token.admits(&format!("Bearer {renewed}")));
}

#[test]
fn the_default_path_is_private_to_the_user() {
    let place = |uid, runtime: Option<&str>| default_path(&group(), uid, runtime.map(PathBuf::from));
    assert_eq!(place(0, Some("/run/user/0")), Path::new("/run/tailwind/db.token"));
    assert_eq!(place(7, Some("/run/user/7")), Path::new("/run/user/7/tailwind/db.token"));
    assert_eq!(place(7, None), Path::new("/dev/shm/tailwind-7/db.token"));
}

/// The folder that is used by default has a name that can be guessed: another user may have made it first.
#[test]
fn a_folder_of_another_user_is_refused() {
    use std::os::unix::fs::{chown, lchown, symlink};
    const STRANGER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(io::stderr(), "cannot run: a_folder_of_another_user_is_refused: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("tailwind");
    let token = own.join("db.token");
    make_folder(&token, true).unwrap();
    make_folder(&token, true).unwrap();
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o755);

    fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
    let error = make_folder(&token, true).unwrap_err().to_string();
    assert!(error.contains("its mode is 0777, so other users may write to it"), "{error}");
    fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
    chown(&own, Some(STRANGER), None).unwrap();
    let error = make_folder(&token, true).unwrap_err().to_string();
    assert!(error.contains(&format!("{}: it belongs to user {STRANGER}", own.display())), "{error}");
    assert!(error.contains("--control-token"), "{error}");

    fs::remove_dir(&own).unwrap();
    symlink(folder.path(), &own).unwrap();
    lchown(&own, Some(STRANGER), None).unwrap();
    let error = make_folder(&token, true).unwrap_err().to_string();
    assert!(error.contains(&format!("is a link of user {STRANGER}")), "{error}");
}
