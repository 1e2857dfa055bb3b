//! Which calls are stopped and which are refused, as data. Everything else continues unseen.
//!
//! `filter` assembles the table for the kernel; `listener` decodes by it. See "Calls that are refused or stopped" in `docs/apps.md`.
//!
//! The kernel looks at the lower half of an argument that is an `int`, and the upper half is what the program happened to leave
//! there; so tests name the halves that they look at.

use std::fmt;

use libc::*;
use rustix::io::Errno;

use self::newer::{SYS_file_setattr, SYS_open_tree_attr, SYS_removexattrat, SYS_setxattrat};
use crate::call::{Call, Descriptor};

/// The highest number that this table knows (`file_setattr` of Linux 6.17). Calls above it get ENOSYS: a newer kernel could
/// change files by them in ways that nobody here follows. The numbers of x32 lie above it, too.
pub const LAST_NUMBER: u32 = 469;

/// Register arguments of a call.
pub(super) type Arguments = [u64; 6];

/// What the filter does with some calls.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// These calls.
    pub calls: &'static [Name],
    /// If this is so. In words; empty if always.
    pub when: &'static str,
    /// The same for machines: all tests of one of these.
    pub(super) cases: &'static [&'static [Test]],
    /// Then this happens. The first rule that fits counts; a call that fits none continues.
    pub outcome: Outcome,
}

/// A call by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    constant: &'static str,
    /// What the kernel calls it on this machine.
    pub number: u32,
}

impl Name {
    /// The name of the call, as in the manual.
    pub fn name(&self) -> &'static str {
        &self.constant["SYS_".len()..]
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// It is stopped, and the listener gets this.
    Stop(fn(&Arguments) -> Call),
    /// It fails with this error.
    Refuse(Errno),
    /// It continues unseen: an exception to the rules below.
    Pass,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Outcome::Stop(_) => f.write_str("stopped"),
            Outcome::Pass => f.write_str("continues"),
            Outcome::Refuse(Errno::INVAL) => f.write_str("EINVAL"),
            Outcome::Refuse(Errno::NOSYS) => f.write_str("ENOSYS"),
            Outcome::Refuse(Errno::OPNOTSUPP) => f.write_str("EOPNOTSUPP"),
            Outcome::Refuse(Errno::PERM) => f.write_str("EPERM"),
            Outcome::Refuse(errno) => write!(f, "error {}", errno.raw_os_error()),
        }
    }
}

/// Looks at half an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub(super) argument: u8,
    pub(super) half: Half,
    /// These bits of it ...
    pub(super) mask: u32,
    /// ... are these,
    pub(super) value: u32,
    /// or are not.
    pub(super) equal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Lower,
    Upper,
}

impl Test {
    pub(super) fn holds(&self, arguments: &Arguments) -> bool {
        let argument = arguments[usize::from(self.argument)];
        let half = match self.half {
            Half::Lower => argument as u32,
            Half::Upper => (argument >> 32) as u32,
        };
        (half & self.mask == self.value) == self.equal
    }
}

impl Rule {
    /// Whether it is about such a call.
    pub(super) fn fits(&self, number: u32, arguments: &Arguments) -> bool {
        let all_hold = |tests: &&[Test]| tests.iter().all(|test| test.holds(arguments));
        self.calls.iter().any(|name| name.number == number) && self.cases.iter().any(all_hold)
    }
}

/// The rule for a call, if there is one.
pub(super) fn find(number: u32, arguments: &Arguments) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.fits(number, arguments))
}

/// What a stopped call is; `None` for a call that the filter does not stop.
pub(super) fn decode(number: u32, arguments: &Arguments) -> Option<Call> {
    match find(number, arguments)?.outcome {
        Outcome::Stop(call) => Some(call(arguments)),
        Outcome::Refuse(_) | Outcome::Pass => None,
    }
}

const ALWAYS: &[&[Test]] = &[&[]];

/// An `int` argument.
const fn is(argument: u8, value: u32) -> Test {
    masked(argument, u32::MAX, value)
}

/// Some bits of an `int` argument.
const fn masked(argument: u8, mask: u32, value: u32) -> Test {
    Test { argument, half: Half::Lower, mask, value, equal: true }
}

/// Any of these bits of an `int` argument.
const fn any_of(argument: u8, bits: u32) -> Test {
    Test { argument, half: Half::Lower, mask: bits, value: 0, equal: false }
}

/// None of these bits of an `int` argument.
const fn none_of(argument: u8, bits: u32) -> Test {
    masked(argument, bits, 0)
}

/// A `long` argument below 0.
const fn negative(argument: u8) -> Test {
    Test { argument, half: Half::Upper, mask: 1 << 31, value: 0, equal: false }
}

/// The upper half of an argument of 64 bits.
const fn upper(argument: u8, value: u32) -> Test {
    Test { argument, half: Half::Upper, mask: u32::MAX, value, equal: true }
}

/// The second argument of an `ioctl` is of this type.
const fn ioctl_type(letter: u8) -> Test {
    masked(1, 0xff00, (letter as u32) << 8)
}

macro_rules! calls {
    ($($constant:ident)*) => { &[$(Name { constant: stringify!($constant), number: $constant as u32 }),*] };
}

/// Numbers, the same on all machines, that are newer than `libc`.
#[allow(non_upper_case_globals, reason = "libc writes the others so")]
mod newer {
    pub(super) const SYS_setxattrat: u32 = 463;
    pub(super) const SYS_removexattrat: u32 = 466;
    pub(super) const SYS_open_tree_attr: u32 = 467;
    pub(super) const SYS_file_setattr: u32 = 469;
}

/// Flags that make every write a sync, which nobody would see, or that go past the page cache.
const SYNCHRONOUS: u32 = (O_SYNC | O_DSYNC | O_DIRECT) as u32;
const NAMESPACES: u32 =
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET) as u32;
const SYNCHRONOUS_WRITE: u32 = (RWF_SYNC | RWF_DSYNC) as u32;
/// `fallocate`: the length stays. No content depends on it.
const KEEP_SIZE: u32 = FALLOC_FL_KEEP_SIZE as u32;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;

/// The table. Calls that are not in it continue, and so do those in it to which no rule applies.
///
/// Some that are not in it, and why:
/// - `write`, `writev`, `sendfile`, and a write with `O_APPEND` or `RWF_APPEND`: each moves a position forward, or writes at the
///   end of the file. That is beyond the length that the log has, or within what a stopped truncation named.
/// - `sync_file_range` confirms nothing. `madvise` with `MADV_REMOVE` and `process_vm_writev` need a mapping, which was stopped.
/// - `seccomp`: a program may refuse itself more. A second listener is EBUSY by the kernel.
pub const RULES: &[Rule] = &[
    // Syncs.
    Rule {
        calls: calls![SYS_fsync SYS_fdatasync],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::Sync(descriptor(arguments[0]))),
    },
    Rule { calls: calls![SYS_sync], when: "", cases: ALWAYS, outcome: Outcome::Stop(|_| Call::SyncAll) },
    Rule {
        calls: calls![SYS_syncfs],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::SyncFileSystem(descriptor(arguments[0]))),
    },
    Rule {
        calls: calls![SYS_msync],
        when: "MS_SYNC",
        cases: &[&[any_of(2, MS_SYNC as u32)]],
        outcome: Outcome::Stop(|arguments| Call::SyncMapping { address: arguments[0], length: arguments[1] }),
    },
    // Writes elsewhere than at the position.
    Rule {
        calls: calls![SYS_pwrite64],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::Write {
            descriptor: descriptor(arguments[0]),
            offset: arguments[3],
            length: arguments[2],
        }),
    },
    Rule {
        calls: calls![SYS_pwritev2],
        when: "RWF_DSYNC, RWF_SYNC",
        cases: &[&[any_of(5, SYNCHRONOUS_WRITE)]],
        outcome: Outcome::Refuse(Errno::OPNOTSUPP),
    },
    Rule {
        calls: calls![SYS_pwritev2],
        when: "offset -1: at the position",
        cases: &[&[is(3, u32::MAX), upper(3, u32::MAX)]],
        outcome: Outcome::Pass,
    },
    Rule {
        // The argument behind the offset would be its upper half on 32 bits; the kernel shifts it out.
        calls: calls![SYS_pwritev SYS_pwritev2],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::WriteFrom {
            descriptor: descriptor(arguments[0]),
            offset: arguments[3],
        }),
    },
    Rule {
        calls: calls![SYS_copy_file_range],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::WriteSomewhere(descriptor(arguments[2]))),
    },
    Rule {
        calls: calls![SYS_splice],
        when: "no off_out: at the position",
        cases: &[&[is(3, 0), upper(3, 0)]],
        outcome: Outcome::Pass,
    },
    Rule {
        calls: calls![SYS_splice],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::WriteSomewhere(descriptor(arguments[2]))),
    },
    // Lengths.
    Rule {
        calls: calls![SYS_ftruncate],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|arguments| Call::WriteFrom {
            descriptor: descriptor(arguments[0]),
            offset: arguments[1],
        }),
    },
    Rule { calls: calls![SYS_truncate], when: "", cases: ALWAYS, outcome: Outcome::Stop(|_| Call::Truncate) },
    Rule {
        calls: calls![SYS_fallocate],
        when: "FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE",
        cases: &[
            &[masked(1, !KEEP_SIZE, FALLOC_FL_PUNCH_HOLE as u32)],
            &[masked(1, !KEEP_SIZE, FALLOC_FL_ZERO_RANGE as u32)],
        ],
        outcome: Outcome::Stop(|arguments| Call::Write {
            descriptor: descriptor(arguments[0]),
            offset: arguments[2],
            length: arguments[3],
        }),
    },
    Rule {
        calls: calls![SYS_fallocate],
        when: "any other mode but 0 and FALLOC_FL_KEEP_SIZE",
        cases: &[&[any_of(1, !KEEP_SIZE)]],
        outcome: Outcome::Refuse(Errno::OPNOTSUPP),
    },
    // Opens.
    #[cfg(target_arch = "x86_64")]
    Rule {
        calls: calls![SYS_open],
        when: "O_SYNC, O_DSYNC, O_DIRECT",
        cases: &[&[any_of(1, SYNCHRONOUS)]],
        outcome: Outcome::Refuse(Errno::INVAL),
    },
    #[cfg(target_arch = "x86_64")]
    Rule {
        calls: calls![SYS_open],
        when: "O_TRUNC",
        cases: &[&[any_of(1, O_TRUNC as u32)]],
        outcome: Outcome::Stop(|_| Call::OpenTruncating),
    },
    #[cfg(target_arch = "x86_64")]
    Rule { calls: calls![SYS_creat], when: "", cases: ALWAYS, outcome: Outcome::Stop(|_| Call::OpenTruncating) },
    Rule {
        calls: calls![SYS_openat],
        when: "O_SYNC, O_DSYNC, O_DIRECT",
        cases: &[&[any_of(2, SYNCHRONOUS)]],
        outcome: Outcome::Refuse(Errno::INVAL),
    },
    Rule {
        calls: calls![SYS_openat],
        when: "O_TRUNC",
        cases: &[&[any_of(2, O_TRUNC as u32)]],
        outcome: Outcome::Stop(|_| Call::OpenTruncating),
    },
    Rule {
        // Flags that lie in memory. C libraries and languages fall back to `openat`.
        calls: calls![SYS_openat2],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::NOSYS),
    },
    Rule {
        // A way into file systems that no path leads to.
        calls: calls![SYS_open_by_handle_at],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::PERM),
    },
    // Names: inotify sees all but this.
    #[cfg(target_arch = "x86_64")]
    Rule { calls: calls![SYS_link], when: "", cases: ALWAYS, outcome: Outcome::Stop(|_| Call::Link) },
    Rule { calls: calls![SYS_linkat], when: "", cases: ALWAYS, outcome: Outcome::Stop(|_| Call::Link) },
    Rule {
        calls: calls![SYS_renameat2],
        when: "RENAME_EXCHANGE",
        cases: &[&[any_of(4, RENAME_EXCHANGE)]],
        outcome: Outcome::Stop(|_| Call::Exchange),
    },
    // Positions and descriptors.
    Rule {
        calls: calls![SYS_lseek],
        when: "SEEK_SET",
        cases: &[&[is(2, SEEK_SET as u32)]],
        outcome: Outcome::Stop(|arguments| Call::Seek {
            descriptor: descriptor(arguments[0]),
            target: Some(arguments[1]),
        }),
    },
    Rule {
        calls: calls![SYS_lseek],
        when: "SEEK_CUR and SEEK_END below 0; SEEK_DATA, SEEK_HOLE",
        cases: &[
            &[is(2, SEEK_CUR as u32), negative(1)],
            &[is(2, SEEK_END as u32), negative(1)],
            &[is(2, SEEK_DATA as u32)],
            &[is(2, SEEK_HOLE as u32)],
        ],
        outcome: Outcome::Stop(|arguments| Call::Seek { descriptor: descriptor(arguments[0]), target: None }),
    },
    #[cfg(target_arch = "x86_64")]
    Rule { calls: calls![SYS_dup2], when: "", cases: ALWAYS, outcome: Outcome::Stop(replace) },
    Rule { calls: calls![SYS_dup3], when: "", cases: ALWAYS, outcome: Outcome::Stop(replace) },
    Rule {
        calls: calls![SYS_dup],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Stop(|_| Call::Duplicate { replaced: None }),
    },
    Rule {
        calls: calls![SYS_fcntl],
        when: "F_DUPFD, F_DUPFD_CLOEXEC",
        cases: &[&[is(1, F_DUPFD as u32)], &[is(1, F_DUPFD_CLOEXEC as u32)]],
        outcome: Outcome::Stop(|_| Call::Duplicate { replaced: None }),
    },
    Rule {
        calls: calls![SYS_fcntl],
        when: "F_SETFL with O_DIRECT",
        cases: &[&[is(1, F_SETFL as u32), any_of(2, O_DIRECT as u32)]],
        outcome: Outcome::Refuse(Errno::INVAL),
    },
    Rule {
        // A table of its own for a thread: its descriptors would not be seen.
        calls: calls![SYS_close_range],
        when: "CLOSE_RANGE_UNSHARE",
        cases: &[&[any_of(2, CLOSE_RANGE_UNSHARE)]],
        outcome: Outcome::Refuse(Errno::PERM),
    },
    Rule { calls: calls![SYS_pidfd_getfd], when: "", cases: ALWAYS, outcome: Outcome::Refuse(Errno::PERM) },
    // Mappings.
    Rule {
        // On persistent memory a store there is as good as a sync, which nobody would see.
        calls: calls![SYS_mmap],
        when: "MAP_SHARED_VALIDATE with MAP_SYNC",
        cases: &[&[masked(3, MAP_TYPE as u32, MAP_SHARED_VALIDATE as u32), any_of(3, MAP_SYNC as u32)]],
        outcome: Outcome::Refuse(Errno::OPNOTSUPP),
    },
    Rule {
        calls: calls![SYS_mmap],
        when: "MAP_SHARED, MAP_SHARED_VALIDATE, without MAP_ANONYMOUS",
        cases: &[
            &[masked(3, MAP_TYPE as u32, MAP_SHARED as u32), none_of(3, MAP_ANONYMOUS as u32)],
            &[masked(3, MAP_TYPE as u32, MAP_SHARED_VALIDATE as u32), none_of(3, MAP_ANONYMOUS as u32)],
        ],
        outcome: Outcome::Stop(|arguments| Call::Map(descriptor(arguments[4]))),
    },
    // Calls that a kernel works on by itself, later.
    Rule {
        calls: calls![SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_io_setup],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::NOSYS),
    },
    // Extents that move between files, attributes that no image keeps, among them one that makes each write a sync.
    Rule {
        calls: calls![SYS_ioctl],
        when: "type 0x94 (FICLONE, FICLONERANGE, FIDEDUPERANGE, all of btrfs), type X (FS_IOC_RESVSP and kin, all of XFS), \
               FS_IOC_SETFLAGS, EXT4_IOC_MOVE_EXT",
        cases: &[&[ioctl_type(0x94)], &[ioctl_type(b'X')], &[is(1, FS_IOC_SETFLAGS)], &[is(1, EXT4_IOC_MOVE_EXT)]],
        outcome: Outcome::Refuse(Errno::OPNOTSUPP),
    },
    Rule {
        // The program has a descriptor of its own listener, and would answer its own syncs, or take them in and never answer.
        calls: calls![SYS_ioctl],
        when: "type ! (SECCOMP_IOCTL_NOTIF_RECV and kin)",
        cases: &[&[ioctl_type(b'!')]],
        outcome: Outcome::Refuse(Errno::PERM),
    },
    Rule {
        calls: calls![
            SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_setxattrat
            SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_removexattrat
            SYS_file_setattr
        ],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::OPNOTSUPP),
    },
    // Other trees and namespaces, where neither paths nor numbers of processes would be the supervisor's.
    Rule {
        calls: calls![
            SYS_chroot SYS_pivot_root SYS_unshare SYS_setns
            SYS_mount SYS_umount2 SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
            SYS_move_mount SYS_open_tree SYS_open_tree_attr SYS_mount_setattr
        ],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::PERM),
    },
    Rule {
        calls: calls![SYS_clone],
        when: "CLONE_NEW*; CLONE_THREAD without CLONE_FILES",
        cases: &[&[any_of(0, NAMESPACES)], &[any_of(0, CLONE_THREAD as u32), none_of(0, CLONE_FILES as u32)]],
        outcome: Outcome::Refuse(Errno::PERM),
    },
    Rule {
        // Flags that lie in memory. C libraries fall back to `clone`.
        calls: calls![SYS_clone3],
        when: "",
        cases: ALWAYS,
        outcome: Outcome::Refuse(Errno::NOSYS),
    },
];

fn replace(arguments: &Arguments) -> Call {
    Call::Duplicate { replaced: Some(descriptor(arguments[1])) }
}

/// An `int` argument.
fn descriptor(argument: u64) -> Descriptor {
    Descriptor(argument as i32)
}
