//! The append socket's file: how it is bound, and how its name is taken away.
//!
//! Called by [`run`](super::run) at the start and at the end; clients come to the [append loop](crate::path).

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tailwind_runtime::usage;

use crate::path::Allowed;

/// Longest path of a Unix socket: `sun_path` of unix(7), less the final zero.
const SOCKET_PATH_MAX: usize = 107;

/// Binds the append socket: mode 0660, or 0666 where other users are allowed, which are then checked by their number. A socket
/// file without a listener is left over from a dead process.
pub(super) fn listen_on_socket(path: &Path, allowed: &Allowed) -> anyhow::Result<(UnixListener, BoundSocket)> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        usage!(
            "socket path {} has {length} bytes: the limit is {SOCKET_PATH_MAX}; choose a shorter --socket",
            path.display()
        );
    }
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        usage!(
            "--socket {} is a folder: give the path of a socket in it, such as {}",
            path.display(),
            path.join("append.sock").display()
        );
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("create folder {}", folder.display()))?;
    }
    check_unused(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            bail!("{} exists and is not a socket: choose another --socket, or move that file away", path.display());
        }
        Ok(_) => std::fs::remove_file(path).with_context(|| format!("remove the stale socket {}", path.display()))?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("bind socket {}", path.display()))?;
    let mode = if *allowed == Allowed::Own { 0o660 } else { 0o666 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of socket {}", path.display()))?;
    listener.set_nonblocking(true).context("make the socket non-blocking")?;
    let bound = BoundSocket::at(path).with_context(|| format!("look at socket {}", path.display()))?;
    Ok((listener, bound))
}

/// An error unless it is certain that no process has the socket. One that is stopped takes no connection: once as many wait as
/// may, a connect that blocks would wait as long as it is.
fn check_unused(path: &Path) -> anyhow::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    let name = path.display();
    match connected {
        // What is left over from a dead process refuses, as does a file that is no socket.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => {
            bail!("socket {name} is in use by another process: stop it, or choose another --socket")
        }
        Err(Errno::PROTOTYPE) => {
            bail!("{name} is another program's socket, not a stream socket: choose another --socket")
        }
        Err(error) => bail!("socket {name} may be in use by another process: {error}; choose another --socket"),
    }
}

/// The name that the append socket was bound to, and what it stood for then.
pub(super) struct BoundSocket {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl BoundSocket {
    fn at(path: &Path) -> std::io::Result<BoundSocket> {
        Ok(BoundSocket { path: path.to_owned(), file: BoundSocket::file(path)? })
    }

    fn file(path: &Path) -> std::io::Result<(u64, u64)> {
        let found = std::fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    }

    /// Takes the name away, unless another process has bound it since.
    pub(super) fn remove(self) {
        if BoundSocket::file(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn refused(path: &Path) -> Option<String> {
        listen_on_socket(path, &Allowed::Own).err().map(|error| error.to_string())
    }

    #[test]
    fn socket_of_a_stopped_process_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("append.sock");
        let stopped = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&stopped, 0).unwrap();
        // The only place in its backlog.
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(refused(&path).is_some_and(|why| why.contains("is in use by another process")));
        drop(stopped);
        assert_eq!(refused(&path), None, "what is left over is replaced");
    }

    #[test]
    fn socket_of_another_kind_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.sock");
        let theirs = UnixDatagram::bind(&path).unwrap();
        assert!(refused(&path).is_some_and(|why| why.contains("another program's socket")));
        assert!(path.exists());
        drop(theirs);
        assert_eq!(refused(&path), None, "what is left over is replaced");
    }
}
