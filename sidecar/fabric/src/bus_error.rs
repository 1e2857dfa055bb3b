//! A mapped file that was cut: the kernel ends a process that touches what its file does not have any more, by SIGBUS, and says
//! nothing. Here it says so.
//!
//! Asked for by programs that map a pool's files, once they know whose ([`explain_bus_errors`]). Slot files belong to one user,
//! and no program of the group ever cuts one, so only that user can have done it.
#![allow(unsafe_code, reason = "a signal's handler")]

use std::io;

use signal_hook::consts::SIGBUS;
use signal_hook::low_level::{emulate_default_handler, register};

/// From now on a SIGBUS writes a line to standard error before it ends the process: `mapped` says which files are mapped.
pub fn explain_bus_errors(mapped: &str) -> io::Result<()> {
    let message = format!(
        "fatal error: SIGBUS: a mapped file was cut while it was in use, of {mapped}. Only this program's user, or root, can have \
         done that. Start it again: it reports what is missing\n"
    );
    let explain = move || {
        let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        let _ = emulate_default_handler(SIGBUS);
    };
    // SAFETY: a handler may do only what is async-signal-safe (signal-safety(7)). This one makes a system call with bytes that
    // were allocated before and are never freed, and calls a function that is documented to be safe in handlers. It takes no
    // lock, allocates nothing and cannot panic.
    unsafe { register(SIGBUS, explain) }?;
    Ok(())
}
