//! Each call of the table as a program makes it, and some that are let through.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libc::*;
use tailwind_exec::call::{Call, Descriptor};

/// What becomes of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It fails with this error, and nobody gets to see it.
    Refused(i32),
    /// It arrives as this. Syncs return 0, all others continue.
    Stopped(Call),
    /// The kernel carries it out; this comes of it.
    Unseen(Result<(), i32>),
}
use Fate::{Refused, Stopped, Unseen};

/// A number, arguments, and what becomes of them.
pub(crate) type Case = (c_long, [u64; 6], Fate);

/// An `int` argument, with an upper half as a program may leave it there.
pub(crate) fn int(argument: i32) -> u64 {
    u64::from(argument.cast_unsigned()) | (0x5a5a_5a5a << 32)
}

/// The calls use a file of this directory. What is not refused is carried out.
#[rustfmt::skip]
pub(crate) fn cases(directory: &Path) -> Vec<Case> {
    let path = directory.join("file");
    fs::write(&path, [7; 10_000]).expect("write a file");
    let file = File::options().read(true).write(true).open(&path).expect("open the file");
    let (reader, mut writer) = std::io::pipe().expect("make a pipe");
    writer.write_all(&[1; 100]).expect("fill the pipe");
    let (fd, pipe) = (int(file.as_raw_fd()), int(reader.as_raw_fd()));
    let on = Descriptor(file.as_raw_fd());
    // All stays until the program ends: the calls know only numbers and addresses.
    Box::leak(Box::new((file, reader, writer)));
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zeros").into_raw() as u64;
    let offset = ptr::from_mut(Box::leak(Box::new(5_i64))) as u64;
    let buffer = ptr::from_mut(Box::leak(Box::new([1_u8; 64])));
    let vector = ptr::from_mut(Box::leak(Box::new(iovec { iov_base: buffer.cast(), iov_len: 8 }))) as u64;
    let buffer = buffer as u64;

    let at = int(AT_FDCWD);
    let minus_one = u64::MAX;
    let write = |offset, length| Stopped(Call::Write { descriptor: on, offset, length });
    let write_from = |offset| Stopped(Call::WriteFrom { descriptor: on, offset });
    let seek = |target| Stopped(Call::Seek { descriptor: on, target });
    let passes = || Unseen(Ok(()));

    let mut cases = vec![
        // Syncs.
        (SYS_fsync, [fd, 0, 0, 0, 0, 0], Stopped(Call::Sync(on))),
        (SYS_fdatasync, [fd, 0, 0, 0, 0, 0], Stopped(Call::Sync(on))),
        (SYS_fsync, [int(-1), 0, 0, 0, 0, 0], Stopped(Call::Sync(Descriptor(-1)))),
        (SYS_syncfs, [fd, 0, 0, 0, 0, 0], Stopped(Call::SyncFileSystem(on))),
        (SYS_sync, [0; 6], Stopped(Call::SyncAll)),
        (SYS_msync, [4096, 8192, int(MS_SYNC), 0, 0, 0], Stopped(Call::SyncMapping { address: 4096, length: 8192 })),
        (SYS_msync, [4096, 0, int(MS_ASYNC), 0, 0, 0], passes()),
        (SYS_sync_file_range, [fd, 0, 0, 0, 0, 0], passes()),
        // Writes.
        (SYS_write, [fd, buffer, 64, 0, 0, 0], passes()),
        (SYS_writev, [fd, vector, 1, 0, 0, 0], passes()),
        (SYS_sendfile, [fd, fd, offset, 10, 0, 0], passes()),
        (SYS_pwrite64, [fd, buffer, 64, 5 << 32, 0, 0], write(5 << 32, 64)),
        (SYS_pwritev, [fd, vector, 1, 300, minus_one, 0], write_from(300)),
        (SYS_pwritev2, [fd, vector, 1, 400, minus_one, int(0)], write_from(400)),
        (SYS_pwritev2, [fd, vector, 1, 400, 0, int(RWF_APPEND)], write_from(400)),
        (SYS_pwritev2, [fd, vector, 1, 0xffff_ffff, 0, 0], write_from(0xffff_ffff)),
        (SYS_pwritev2, [fd, vector, 1, minus_one, 0, int(0)], passes()),
        (SYS_pwritev2, [fd, vector, 1, minus_one, 0, int(RWF_APPEND)], passes()),
        (SYS_pwritev2, [fd, vector, 1, minus_one, 0, int(RWF_DSYNC)], Refused(EOPNOTSUPP)),
        (SYS_pwritev2, [fd, vector, 1, 0, 0, int(RWF_SYNC)], Refused(EOPNOTSUPP)),
        (SYS_copy_file_range, [fd, offset, fd, 0, 10, 0], Stopped(Call::WriteSomewhere(on))),
        (SYS_splice, [pipe, 0, fd, offset, 10, 0], Stopped(Call::WriteSomewhere(on))),
        (SYS_splice, [pipe, 0, fd, 1 << 32, 10, 0], Stopped(Call::WriteSomewhere(on))),
        (SYS_splice, [pipe, 0, fd, 0, 10, 0], passes()),
        // Lengths.
        (SYS_ftruncate, [fd, 5_000, 0, 0, 0, 0], write_from(5_000)),
        (SYS_truncate, [path, 4_000, 0, 0, 0, 0], Stopped(Call::Truncate)),
        (SYS_fallocate, [fd, int(0), 0, 6_000, 0, 0], passes()),
        (SYS_fallocate, [fd, int(FALLOC_FL_KEEP_SIZE), 0, 7_000, 0, 0], passes()),
        (SYS_fallocate, [fd, int(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), 3, 70, 0, 0], write(3, 70)),
        (SYS_fallocate, [fd, int(FALLOC_FL_ZERO_RANGE), 4, 80, 0, 0], write(4, 80)),
        (SYS_fallocate, [fd, int(FALLOC_FL_COLLAPSE_RANGE), 0, 4_096, 0, 0], Refused(EOPNOTSUPP)),
        (SYS_fallocate, [fd, int(FALLOC_FL_INSERT_RANGE), 0, 4_096, 0, 0], Refused(EOPNOTSUPP)),
        (SYS_fallocate, [fd, int(FALLOC_FL_UNSHARE_RANGE), 0, 4_096, 0, 0], Refused(EOPNOTSUPP)),
        // Opens.
        (SYS_openat, [at, path, int(O_RDWR | O_CREAT | O_APPEND), 0, 0, 0], passes()),
        (SYS_openat, [at, path, int(O_RDWR | O_TRUNC), 0, 0, 0], Stopped(Call::OpenTruncating)),
        (SYS_openat, [at, path, int(O_RDWR | O_DSYNC), 0, 0, 0], Refused(EINVAL)),
        (SYS_openat, [at, path, int(O_RDWR | O_TRUNC | O_SYNC), 0, 0, 0], Refused(EINVAL)),
        (SYS_openat, [at, path, int(O_RDONLY | O_DIRECT), 0, 0, 0], Refused(EINVAL)),
        (SYS_linkat, [at, path, at, path, 0, 0], Stopped(Call::Link)),
        (SYS_renameat2, [at, path, at, path, int(0), 0], passes()),
        (SYS_renameat2, [at, path, at, path, int(RENAME_NOREPLACE as i32), 0], Unseen(Err(EEXIST))),
        (SYS_renameat2, [at, path, at, path, int(RENAME_EXCHANGE as i32), 0], Stopped(Call::Exchange)),
        (SYS_openat2, [at, path, 0, 0, 0, 0], Refused(ENOSYS)),
        (SYS_open_by_handle_at, [at, 0, 0, 0, 0, 0], Refused(EPERM)),
        // Positions and descriptors.
        (SYS_lseek, [fd, 9 << 32, int(SEEK_SET), 0, 0, 0], seek(Some(9 << 32))),
        (SYS_lseek, [fd, 0, int(SEEK_CUR), 0, 0, 0], passes()),
        (SYS_lseek, [fd, 0xffff_ffff, int(SEEK_CUR), 0, 0, 0], passes()),
        (SYS_lseek, [fd, minus_one, int(SEEK_CUR), 0, 0, 0], seek(None)),
        (SYS_lseek, [fd, 0, int(SEEK_END), 0, 0, 0], passes()),
        (SYS_lseek, [fd, minus_one, int(SEEK_END), 0, 0, 0], seek(None)),
        (SYS_lseek, [fd, 0, int(SEEK_DATA), 0, 0, 0], seek(None)),
        (SYS_lseek, [fd, 0, int(SEEK_HOLE), 0, 0, 0], seek(None)),
        (SYS_lseek, [fd, 0, int(99), 0, 0, 0], Unseen(Err(EINVAL))),
        (SYS_read, [fd, buffer, 64, 0, 0, 0], passes()),
        (SYS_dup, [fd, 0, 0, 0, 0, 0], Stopped(Call::Duplicate { replaced: None })),
        (SYS_dup3, [fd, 901, 0, 0, 0, 0], Stopped(Call::Duplicate { replaced: Some(Descriptor(901)) })),
        (SYS_fcntl, [fd, int(F_DUPFD), 900, 0, 0, 0], Stopped(Call::Duplicate { replaced: None })),
        (SYS_fcntl, [fd, int(F_DUPFD_CLOEXEC), 900, 0, 0, 0], Stopped(Call::Duplicate { replaced: None })),
        (SYS_fcntl, [fd, int(F_SETFL), int(O_DIRECT), 0, 0, 0], Refused(EINVAL)),
        (SYS_fcntl, [fd, int(F_SETFL), int(O_APPEND), 0, 0, 0], passes()),
        (SYS_fcntl, [fd, int(F_GETFL), int(O_DIRECT), 0, 0, 0], passes()),
        (SYS_close_range, [900, 999, int(0), 0, 0, 0], passes()),
        (SYS_close_range, [900, 999, int(CLOSE_RANGE_UNSHARE.cast_signed()), 0, 0, 0], Refused(EPERM)),
        (SYS_pidfd_getfd, [0; 6], Refused(EPERM)),
        // Mappings.
        (SYS_mmap, [0, 4096, 3, int(MAP_SHARED), fd, 0], Stopped(Call::Map(on))),
        (SYS_mmap, [0, 4096, 1, MAP_SHARED_VALIDATE as u64, fd, 0], Stopped(Call::Map(on))),
        (SYS_mmap, [0, 4096, 3, (MAP_SHARED_VALIDATE | MAP_SYNC) as u64, fd, 0], Refused(EOPNOTSUPP)),
        (SYS_mmap, [0, 4096, 3, MAP_PRIVATE as u64, fd, 0], passes()),
        (SYS_mmap, [0, 4096, 3, (MAP_SHARED | MAP_ANONYMOUS) as u64, int(-1), 0], passes()),
        // What changes files in ways that nobody follows.
        (SYS_io_uring_setup, [0; 6], Refused(ENOSYS)),
        (SYS_io_uring_enter, [0; 6], Refused(ENOSYS)),
        (SYS_io_uring_register, [0; 6], Refused(ENOSYS)),
        (SYS_io_setup, [0; 6], Refused(ENOSYS)),
        (SYS_ioctl, [fd, int(0x541b), buffer, 0, 0, 0], passes()), // FIONREAD
        // What changes where names and numbers lead.
        (SYS_clone3, [0; 6], Refused(ENOSYS)),
        (SYS_clone, [int(CLONE_NEWUSER | SIGCHLD), 0, 0, 0, 0, 0], Refused(EPERM)),
        (SYS_clone, [int(CLONE_NEWNS | SIGCHLD), 0, 0, 0, 0, 0], Refused(EPERM)),
        (SYS_clone, [int(CLONE_THREAD | CLONE_VM | CLONE_SIGHAND), 0, 0, 0, 0, 0], Refused(EPERM)),
        // A number that no kernel has.
        (1000, [0; 6], Refused(ENOSYS)),
    ];
    let refused_requests = [
        0x4004_9409_u32, // FICLONE
        0x4020_940d, // FICLONERANGE
        0xc018_9436, // FIDEDUPERANGE
        0x0000_9408, // BTRFS_IOC_SYNC
        0x4030_582a, // FS_IOC_RESVSP64
        0x4030_5839, // FS_IOC_ZERO_RANGE
        0x401c_5820, // FS_IOC_FSSETXATTR
        0x4008_6602, // FS_IOC_SETFLAGS
        0xc028_660f, // EXT4_IOC_MOVE_EXT
    ];
    cases.extend(refused_requests.map(|request| {
        (SYS_ioctl, [fd, int(request.cast_signed()), 0, 0, 0, 0], Refused(EOPNOTSUPP))
    }));
    let listener_requests = [
        0xc050_2100_u32, // SECCOMP_IOCTL_NOTIF_RECV
        0xc018_2101, // SECCOMP_IOCTL_NOTIF_SEND
        0x4008_2102, // SECCOMP_IOCTL_NOTIF_ID_VALID
        0x4018_2103, // SECCOMP_IOCTL_NOTIF_ADDFD
        0x4008_2104, // SECCOMP_IOCTL_NOTIF_SET_FLAGS
    ];
    cases.extend(listener_requests.map(|request| {
        (SYS_ioctl, [fd, int(request.cast_signed()), 0, 0, 0, 0], Refused(EPERM))
    }));
    let attributes = [
        SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, 463, // setxattrat
        SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, 466, // removexattrat
        469, // file_setattr
    ];
    cases.extend(attributes.map(|number| (number, [0; 6], Refused(EOPNOTSUPP))));
    let elsewhere = [
        SYS_chroot, SYS_pivot_root, SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_fsopen, SYS_fsconfig, SYS_fsmount,
        SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_mount_setattr, 467, // open_tree_attr
    ];
    cases.extend(elsewhere.map(|number| (number, [0; 6], Refused(EPERM))));
    #[cfg(target_arch = "x86_64")]
    cases.extend([
        (SYS_open, [path, int(O_RDWR), 0, 0, 0, 0], passes()),
        (SYS_open, [path, int(O_RDWR | O_TRUNC), 0, 0, 0, 0], Stopped(Call::OpenTruncating)),
        (SYS_open, [path, int(O_RDWR | O_DSYNC), 0, 0, 0, 0], Refused(EINVAL)),
        (SYS_link, [path, path, 0, 0, 0, 0], Stopped(Call::Link)),
        (SYS_creat, [path, 0o600, 0, 0, 0, 0], Stopped(Call::OpenTruncating)),
        (SYS_dup2, [fd, 902, 0, 0, 0, 0], Stopped(Call::Duplicate { replaced: Some(Descriptor(902)) })),
        // The numbers of x32.
        (0x4000_0000 + SYS_fsync, [fd, 0, 0, 0, 0, 0], Refused(ENOSYS)),
        (0x4000_0000 + SYS_getpid, [0; 6], Refused(ENOSYS)),
    ]);
    cases
}
