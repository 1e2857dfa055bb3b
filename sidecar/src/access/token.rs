//! The control token: a file of random digits that only the processes of a group can read.
//!
//! Without TLS it distinguishes a process of the group from any other user of the host. A caller shows it as a bearer token
//! (RFC 6750), but only to a server that has [proved](Token::proof) that it knows the token as well: otherwise a process that
//! takes the port of a backup that is down would learn it. See decision 0022.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::anyhow;
use ring::digest::{SHA256, digest};
use ring::hmac;
use rustix::fs::OFlags;
use subtle::ConstantTimeEq;
use tailwind_folder::{Folder, FolderError, Make};
use tailwind_protocol::ids::GroupName;

/// Random bytes of a token; the file holds two hexadecimal digits for each.
const TOKEN_SIZE: usize = 32;
/// Minimum characters of a token from another source: 128 bits in hexadecimal.
const CHARACTERS_MIN: usize = 32;
/// A longer file is not a token: a request's head would not hold it.
const FILE_SIZE_MAX: u64 = 1024;
/// How often the file is looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// A nonce that is longer is not ours.
const NONCE_LENGTH_MAX: usize = 64;
/// What to do about a file that cannot be used.
const REPLACE: &str =
    "Stop every process of the group, remove the file, and start them again: the first one makes a new file";

/// Where the control token lies.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TokenOptions {
    /// Without TLS: the file with the token that callers of the control RPC must present; the same for every process of the
    /// group, and readable only by their user. Created if missing. [default: /run/tailwind/GROUP.token for root,
    /// tailwind/GROUP.token in XDG_RUNTIME_DIR for others, or else /dev/shm/tailwind-UID/GROUP.token]
    #[arg(long, env = "TAILWIND_CONTROL_TOKEN", value_name = "FILE")]
    pub control_token: Option<PathBuf>,
}

/// A token that has been read. Cheap to clone; clones see what is [reloaded](Token::keep_fresh).
#[derive(Clone)]
pub struct Token(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// It is in the folder that is used by default.
    is_default: bool,
    digits: RwLock<String>,
}

impl TokenOptions {
    /// Reads the group's token; makes the file first if there is none. Several processes that start at once agree on one.
    pub fn load(&self, group: &GroupName) -> anyhow::Result<Token> {
        let uid = rustix::process::geteuid();
        let (path, is_default) = match &self.control_token {
            Some(path) => (path.clone(), false),
            None => {
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
                let path = default_path(group, uid.as_raw(), runtime);
                make_folder(&path, uid.is_root())?;
                (path, true)
            }
        };
        if !exists(&path) {
            make(&path, &random().map_err(|error| cannot_make(&path, &error))?)?;
        }
        Token::found(&path, is_default)
    }
}

impl Token {
    /// Reads a file that is there.
    pub fn read(path: &Path) -> anyhow::Result<Token> {
        Token::found(path, false)
    }

    fn found(path: &Path, is_default: bool) -> anyhow::Result<Token> {
        let digits = read(path)?;
        Ok(Token(Arc::new(Inner { path: path.to_owned(), is_default, digits: RwLock::new(digits) })))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The value of the header `authorization` that shows it.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.digits())
    }

    /// Whether the value of a header shows it. Takes as long for any wrong token of the right length.
    pub fn admits(&self, authorization: &str) -> bool {
        let shown = authorization.strip_prefix("Bearer ").unwrap_or_default();
        self.digits().as_bytes().ct_eq(shown.trim().as_bytes()).into()
    }

    /// What a server answers that knows it, for a nonce that the caller has drawn. It is of the address that the caller has
    /// reached, so that a proof cannot be relayed from another server of the group. `None` if that is no nonce.
    pub fn proof(&self, nonce: &str, server: SocketAddr) -> Option<String> {
        if nonce.is_empty() || nonce.len() > NONCE_LENGTH_MAX {
            return None;
        }
        let key = digest(&SHA256, self.digits().as_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
        let message = format!("tailwind control proof\n{server}\n{nonce}");
        Some(hexadecimal(hmac::sign(&key, message.as_bytes()).as_ref()))
    }

    /// Whether a server that answers so knows the token.
    pub fn is_proof(&self, answer: &[u8], nonce: &str, server: SocketAddr) -> bool {
        self.proof(nonce, server).is_some_and(|proof| bool::from(proof.as_bytes().ct_eq(answer)))
    }

    /// Polls the file until the process ends: new content takes effect, and a removed file is restored, so
    /// that the next process to start agrees with those that run. A file that cannot be used changes nothing.
    pub async fn keep_fresh(self) -> Infallible {
        let mut last_error = String::new();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            match self.look() {
                Ok(None) => last_error.clear(),
                Ok(Some(what)) => tracing::info!(file = %self.path().display(), "control token {what}"),
                Err(error) if error.to_string() != last_error => {
                    last_error = error.to_string();
                    tracing::warn!(%error, "the control token file cannot be used; the token in use stays");
                }
                Err(_) => {}
            }
        }
    }

    /// What has been done about the file.
    fn look(&self) -> anyhow::Result<Option<&'static str>> {
        let path = self.path();
        if !exists(path) {
            if self.0.is_default {
                make_folder(path, rustix::process::geteuid().is_root())?;
            }
            return make(path, &self.digits()).map(|()| Some("put back"));
        }
        let digits = read(path)?;
        if digits == self.digits() {
            return Ok(None);
        }
        *self.0.digits.write().unwrap_or_else(PoisonError::into_inner) = digits;
        Ok(Some("reloaded"))
    }

    fn digits(&self) -> String {
        self.0.digits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Token").field(&self.0.path).finish()
    }
}

/// A nonce for a [proof](Token::proof).
pub fn nonce() -> io::Result<String> {
    random()
}

fn default_path(group: &GroupName, uid: u32, runtime: Option<PathBuf>) -> PathBuf {
    let folder = match (uid, runtime) {
        (0, _) => PathBuf::from("/run/tailwind"),
        (_, Some(runtime)) => runtime.join("tailwind"),
        (uid, None) => PathBuf::from(format!("/dev/shm/tailwind-{uid}")),
    };
    folder.join(format!("{group}.token"))
}

fn cannot_make(path: &Path, error: &io::Error) -> anyhow::Error {
    let path = path.display();
    anyhow!("create control token file {path}: {error}: use --control-token to give a path that this user may write")
}

/// Makes the folder of a file, whose name can be guessed: no other user may have made it. Root's has the append sockets too,
/// which others may be allowed to use.
fn make_folder(path: &Path, is_root: bool) -> anyhow::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    match Folder::open(folder, Make::All(if is_root { 0o755 } else { 0o700 })) {
        Ok(_) => Ok(()),
        Err(FolderError::Io { source, .. }) => Err(cannot_make(path, &source)),
        Err(error @ FolderError::Untrusted { .. }) => Err(anyhow!(
            "folder of the control token {error}. Let it belong to this user and have mode 0700, if nobody else has changed \
             what is in it, or use --control-token to give a path in another folder"
        )),
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Makes the file with its whole content in one step, unless it is there: `link` never replaces.
fn make(path: &Path, digits: &str) -> anyhow::Result<()> {
    let failed = |error| cannot_make(path, &error);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", random().map_err(failed)?));
    let fresh = PathBuf::from(name);
    let written = File::options().write(true).create_new(true).mode(0o600).open(&fresh).and_then(|mut file| {
        writeln!(file, "{digits}")?;
        fs::hard_link(&fresh, path)
    });
    let _ = fs::remove_file(&fresh);
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error)),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let failed = |error: io::Error| {
        anyhow!(
            "read control token file {}: {error}: run every process of the group as the user that owns it, name another file \
             with --control-token, or use TLS",
            path.display()
        )
    };
    let of_content = |why: String| anyhow!("control token file {}: {why}. {REPLACE}", path.display());
    let of_openness = |why: String| {
        let path = path.display();
        anyhow!(
            "control token file {path} is open to others ({why}): anyone who reads it controls the group. {REPLACE}"
        )
    };
    // Neither a link that another user may redirect, nor a pipe that blocks the start.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(of_content("it is not a regular file".to_owned()));
    }
    let uid = rustix::process::geteuid().as_raw();
    if ![0, uid].contains(&about.uid()) {
        return Err(of_openness(format!("it belongs to user {}", about.uid())));
    }
    if about.mode() & 0o077 != 0 {
        return Err(of_openness(format!("its mode is {:04o} instead of 0600", about.mode() & 0o7777)));
    }
    let mut text = String::new();
    match file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(of_content("it is not text".to_owned()));
        }
        Err(error) => return Err(failed(error)),
        Ok(size) if size as u64 > FILE_SIZE_MAX => {
            return Err(of_content(format!("it is longer than {FILE_SIZE_MAX} bytes")));
        }
        Ok(_) => {}
    }
    let digits = text.trim();
    if !digits.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(of_content("it is not one word of ASCII characters".to_owned()));
    }
    match digits.len() {
        0 => Err(of_content("it is empty".to_owned())),
        count if count < CHARACTERS_MIN => {
            Err(of_content(format!("it has {count} characters, and {CHARACTERS_MIN} are needed")))
        }
        _ => Ok(digits.to_owned()),
    }
}

fn random() -> io::Result<String> {
    let mut bytes = [0; TOKEN_SIZE];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
