//! The program of the tests: this executable again, in the part that an environment variable names. It says on standard output
//! what it found, each time on a line that begins with a key, behind an empty one: the test harness writes there too.
#![allow(clippy::print_stdout, reason = "the tests read it")]

use std::arch::asm;
use std::env;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use libc::*;
use tailwind_exec::trap::{LAST_NUMBER, spawn};

use super::cases::{Fate, cases, int};

const PART: &str = "TRAP_PART";
/// Where the part `calls` has its file.
pub(crate) const DIRECTORY: &str = "TRAP_DIRECTORY";

/// This executable, in another part.
pub(crate) fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this executable"));
    command.args(["program::program", "--exact", "--nocapture"]).env(PART, name).stdin(Stdio::null());
    command
}

/// The program of the other tests, which they start. Without a part it shows what they compare with: without a filter the kernel
/// answers a sync by itself.
#[test]
fn program() {
    let Ok(name) = env::var(PART) else {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(fsync(file.as_raw_fd()), Ok(0));
        assert_eq!(fsync(-1), Err(libc::EBADF));
        return;
    };
    match name.as_str() {
        "calls" => make_all_calls(),
        "fsyncs" => make_three_fsyncs(),
        "signal" => be_interrupted(),
        "descendants" => have_descendants(),
        "descriptors" => list_descriptors(),
        "nested" => {
            let error = spawn(part("fsyncs")).expect_err("a listener below another");
            println!("\nnested: {error}");
        }
        "supervisor" => supervise_and_answer_nothing(),
        "sleeper" => {
            println!("\nfsync: {:?}", fsync(-1));
            thread::sleep(Duration::from_secs(120));
        }
        other => panic!("no part {other}"),
    }
}

/// A call by number. An error is its errno.
pub(crate) fn call(number: c_long, [a, b, c, d, e, f]: [u64; 6]) -> Result<i64, i32> {
    // SAFETY: the callers give pointers that are valid for what the call does with them, or null, or are refused.
    let result = unsafe { syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(io::Error::last_os_error().raw_os_error().expect("an errno")) } else { Ok(result) }
}

fn fsync(descriptor: i32) -> Result<i64, i32> {
    call(SYS_fsync, [int(descriptor), 0, 0, 0, 0, 0])
}

/// No descriptor, so the kernel says EBADF. The target of what `mark` seeks.
pub(crate) const MARK: i32 = -77;

/// A call that is stopped, so that the test sees what comes between two of them.
fn mark() {
    call(SYS_lseek, [int(MARK), 0, int(SEEK_SET), 0, 0, 0]).expect_err("no such descriptor");
}

fn make_all_calls() {
    let directory = env::var_os(DIRECTORY).expect("a directory");
    for (number, arguments, fate) in cases(Path::new(&directory)) {
        mark();
        let result = call(number, arguments);
        println!("\ncase: {number} {fate:?}");
        let as_wanted = match &fate {
            Fate::Refused(errno) => result == Err(*errno),
            Fate::Stopped(call) => !call.is_sync() || result == Ok(0),
            Fate::Unseen(wanted) => result.map(|_| ()) == *wanted,
        };
        assert!(as_wanted, "call {number} {arguments:x?}: {fate:?}, got {result:?}");
    }
    mark();
    #[cfg(target_arch = "x86_64")]
    assert_eq!(getpid_of_32_bits(), -ENOSYS);
    assert_eq!(call(i64::from(LAST_NUMBER) + 1, [0; 6]), Err(ENOSYS));
    println!("\nall cases: done");
}

/// As 32-bit programs of this machine make the call.
#[cfg(target_arch = "x86_64")]
fn getpid_of_32_bits() -> i32 {
    let result: i32;
    // SAFETY: getpid takes no arguments, and such a call changes no registers but eax and r8 to r11.
    unsafe {
        asm!("int 0x80", inlateout("eax") 20 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    result
}

fn make_three_fsyncs() {
    for _ in 0..3 {
        println!("\nfsync: {:?}", fsync(-1));
    }
}

static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn catch(_: c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn be_interrupted() {
    // SAFETY: zeros are a valid `sigaction`: no flags, so without SA_RESTART, and nothing masked.
    let mut action: sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = catch as *const () as usize;
    // SAFETY: the action is alive during the call, its handler only counts, and the old action is not asked for.
    let result = unsafe { sigaction(SIGUSR1, &raw const action, ptr::null_mut()) };
    assert_eq!(result, 0);
    println!("\nfsync: {:?}, caught {}", fsync(-1), CAUGHT.load(Ordering::Relaxed));
}

fn have_descendants() {
    let status = part("fsyncs").status().expect("start a child");
    assert!(status.success());
    let result = thread::spawn(fsync_without_libc).join().expect("a thread that ends");
    println!("\nthread: {result}");
}

#[cfg(target_arch = "x86_64")]
fn fsync_without_libc() -> i64 {
    let result: i64;
    // SAFETY: fsync changes no memory, and a call no registers but these.
    unsafe {
        asm!("syscall", inlateout("rax") SYS_fsync => result, in("rdi") -1_i64, out("rcx") _, out("r11") _);
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn fsync_without_libc() -> i64 {
    let result: i64;
    // SAFETY: fsync changes no memory, and a call no register but x0.
    unsafe {
        asm!("svc 0", in("x8") SYS_fsync, inlateout("x0") -1_i64 => result);
    }
    result
}

fn list_descriptors() {
    let directory = fs::read_dir("/proc/self/fd").expect("open the directory");
    let mut numbers: Vec<_> = directory.map(|entry| entry.expect("read the directory").file_name()).collect();
    numbers.sort();
    println!("\ndescriptors: {numbers:?}");
    println!("\n{}", fs::read_to_string("/proc/self/status").expect("read its status"));
}

fn supervise_and_answer_nothing() {
    let (child, listener) = spawn(part("sleeper")).expect("start under the filter");
    super::next(&listener);
    println!("\nsupervised: {}", child.id());
    loop {
        thread::park();
    }
}
