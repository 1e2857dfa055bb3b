//! The assembled filter, run by an interpreter, does what a second writing of the rules says: one that shares nothing with the
//! table but the numbers of calls, and was made from the documentation.

use libc::*;

use super::super::rules::decode;
use super::*;
use crate::call::{Call, Descriptor};

/// What the kernel would do.
#[derive(PartialEq, Eq, Debug)]
enum Action {
    Allow,
    Fail(i32),
    Stop(Call),
}
use Action::{Allow, Fail, Stop};

/// A second writing of the rules.
#[allow(non_upper_case_globals, reason = "libc writes the names of calls so")]
fn expected(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> Action {
    let file = Descriptor(a as u32 as i32);
    let stop_if = |condition: bool, call: Call| if condition { Stop(call) } else { Allow };
    let fail_if = |condition: bool, errno: i32| if condition { Fail(errno) } else { Allow };
    let open = |flags: u64| {
        if flags & 0o4_010_000 != 0 || flags as i32 & O_DIRECT != 0 {
            Fail(EINVAL)
        } else {
            stop_if(flags & 0o1000 != 0, Call::OpenTruncating)
        }
    };
    match number {
        0x4000_0000.. | ..0 | 470.. => Fail(ENOSYS),
        SYS_fsync | SYS_fdatasync => Stop(Call::Sync(file)),
        SYS_sync => Stop(Call::SyncAll),
        SYS_syncfs => Stop(Call::SyncFileSystem(file)),
        SYS_msync => stop_if(c & 4 != 0, Call::SyncMapping { address: a, length: b }),
        SYS_pwrite64 => Stop(Call::Write { descriptor: file, offset: d, length: c }),
        SYS_pwritev => Stop(Call::WriteFrom { descriptor: file, offset: d }),
        SYS_pwritev2 if f & 6 != 0 => Fail(EOPNOTSUPP),
        SYS_pwritev2 => stop_if(d != u64::MAX, Call::WriteFrom { descriptor: file, offset: d }),
        SYS_copy_file_range => Stop(Call::WriteSomewhere(Descriptor(c as u32 as i32))),
        SYS_splice => stop_if(d != 0, Call::WriteSomewhere(Descriptor(c as u32 as i32))),
        SYS_ftruncate => Stop(Call::WriteFrom { descriptor: file, offset: b }),
        SYS_truncate => Stop(Call::Truncate),
        SYS_fallocate => match b as u32 {
            0 | 1 => Allow,
            2 | 3 | 16 | 17 => Stop(Call::Write { descriptor: file, offset: c, length: d }),
            _ => Fail(EOPNOTSUPP),
        },
        SYS_openat => open(c),
        #[cfg(target_arch = "x86_64")]
        SYS_open => open(b),
        #[cfg(target_arch = "x86_64")]
        SYS_creat => Stop(Call::OpenTruncating),
        #[cfg(target_arch = "x86_64")]
        SYS_dup2 => Stop(Call::Duplicate { replaced: Some(Descriptor(b as u32 as i32)) }),
        SYS_linkat => Stop(Call::Link),
        #[cfg(target_arch = "x86_64")]
        SYS_link => Stop(Call::Link),
        SYS_renameat2 => stop_if(e & 2 != 0, Call::Exchange),
        SYS_openat2 => Fail(ENOSYS),
        SYS_open_by_handle_at => Fail(EPERM),
        SYS_lseek => match c as u32 {
            0 => Stop(Call::Seek { descriptor: file, target: Some(b) }),
            1 | 2 => stop_if((b as i64) < 0, Call::Seek { descriptor: file, target: None }),
            3 | 4 => Stop(Call::Seek { descriptor: file, target: None }),
            _ => Allow,
        },
        SYS_dup3 => Stop(Call::Duplicate { replaced: Some(Descriptor(b as u32 as i32)) }),
        SYS_dup => Stop(Call::Duplicate { replaced: None }),
        SYS_fcntl => match b as u32 {
            0 | 1030 => Stop(Call::Duplicate { replaced: None }),
            4 => fail_if(c as i32 & O_DIRECT != 0, EINVAL),
            _ => Allow,
        },
        SYS_close_range => fail_if(c & 2 != 0, EPERM),
        SYS_pidfd_getfd => Fail(EPERM),
        SYS_mmap => match d & 0xf {
            3 if d & 0x8_0000 != 0 => Fail(EOPNOTSUPP),
            1 | 3 => stop_if(d & 0x20 == 0, Call::Map(Descriptor(e as u32 as i32))),
            _ => Allow,
        },
        SYS_io_uring_setup | SYS_io_uring_enter | SYS_io_uring_register | SYS_io_setup | SYS_clone3 => Fail(ENOSYS),
        SYS_ioctl => match b as u32 {
            0x4004_9409 | 0x4020_940d | 0xc018_9436 | 0x9408 => Fail(EOPNOTSUPP),
            0x4030_5828..=0x4030_582b | 0x4030_5839 | 0x401c_5820 => Fail(EOPNOTSUPP),
            0x4008_6602 | 0xc028_660f => Fail(EOPNOTSUPP),
            other if (other / 256) % 256 == 0x21 => Fail(EPERM),
            other => fail_if((other / 256) % 256 == 0x94 || (other / 256) % 256 == 0x58, EOPNOTSUPP),
        },
        SYS_setxattr | SYS_lsetxattr | SYS_fsetxattr | 463 => Fail(EOPNOTSUPP),
        SYS_removexattr | SYS_lremovexattr | SYS_fremovexattr | 466 | 469 => Fail(EOPNOTSUPP),
        SYS_chroot | SYS_pivot_root | SYS_unshare | SYS_setns | SYS_mount | SYS_umount2 => Fail(EPERM),
        // open_tree to fspick, mount_setattr, open_tree_attr
        428..=433 | 442 | 467 => Fail(EPERM),
        SYS_clone => {
            let namespaces =
                [CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET];
            let new = namespaces.into_iter().any(|flag| a as i32 & flag != 0);
            fail_if(new || a & 0x1_0000 != 0 && a & 0x400 == 0, EPERM)
        }
        _ => Allow,
    }
}

/// Runs classic BPF, as far as filters use it.
fn run(program: &[sock_filter], data: &[u32; 16]) -> u32 {
    let (mut accumulator, mut at) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let mut jump = |condition: bool| at += usize::from(if condition { jt } else { jf });
        match u32::from(code) {
            0x20 => {
                assert_eq!(k % 4, 0, "aligned");
                accumulator = data[k as usize / 4];
            }
            0x54 => accumulator &= k,
            0x15 => jump(accumulator == k),
            0x25 => jump(accumulator > k),
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn filtered(program: &[sock_filter], architecture: u32, number: u32, arguments: &[u64; 6]) -> Action {
    let mut data = [0; 16];
    data[..4].copy_from_slice(&[number, architecture, 0xdead_beef, 0xdead_beef]);
    for (words, argument) in data[4..].chunks_exact_mut(2).zip(arguments) {
        words.copy_from_slice(&[*argument as u32, (argument >> 32) as u32]);
    }
    match run(program, &data) {
        0x7fff_0000 => Allow,
        0x7fc0_0000 => Stop(decode(number, arguments).expect("a stopped call has a meaning")),
        errno @ 0x5_0000..0x6_0000 => Fail((errno - 0x5_0000) as i32),
        other => panic!("action {other:#x}"),
    }
}

/// Splitmix.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<const N: usize>(&mut self, choices: [u64; N]) -> u64 {
        choices[(self.next() % N as u64) as usize]
    }

    /// Small numbers, flags, combinations of some, requests of `ioctl`; and anything in the upper half.
    fn argument(&mut self) -> u64 {
        let bits = |random: &mut Random| 1 << (random.next() % 32);
        let lower = match self.next() % 8 {
            0 => self.of([0, 1, 2, 3, 4, 5, 16, 17, 18, 33, 1030, 1031, u64::from(u32::MAX), 1 << 31]),
            1 => self.next() % 40,
            2 => bits(self),
            3 => bits(self) | bits(self),
            4 => bits(self) | bits(self) | (self.next() % 4),
            5 => self.of([0x4004_9409, 0x4020_940d, 0xc018_9436, 0x9408, 0x4030_582a, 0xc050_2100, 0x801c_581f]),
            6 => self.of([0x4008_6602, 0xc028_660f, 0x8008_6601, 0xc020_660b, 0x5421, 0x541b, 0x3d_0f00, 0x1_0000]),
            _ => self.next() & 0xffff_ffff,
        };
        let upper = match self.next() % 4 {
            0 | 1 => 0,
            2 => u64::from(u32::MAX),
            _ => self.next() >> 32,
        };
        lower | (upper << 32)
    }
}

#[test]
fn filter_does_what_the_rules_say() {
    let program = assemble();
    let mut random = Random(1);
    let mut actions = [0_u32; 3];
    for number in (0..600).chain([0x3fff_ffff]) {
        let rounds = if numbers().contains(&number) { 20_000 } else { 50 };
        for _ in 0..rounds {
            let arguments = [(); 6].map(|()| random.argument());
            let action = filtered(&program, ARCHITECTURE, number, &arguments);
            assert_eq!(action, expected(i64::from(number), arguments), "call {number} with {arguments:x?}");
            assert_eq!(matches!(action, Stop(_)), decode(number, &arguments).is_some());
            actions[match action {
                Allow => 0,
                Fail(_) => 1,
                Stop(_) => 2,
            }] += 1;
        }
    }
    assert!(actions.into_iter().all(|times| times > 100_000), "all happens often: {actions:?}");
}

#[test]
fn other_ways_to_make_a_call_do_not_exist() {
    let program = assemble();
    let nosys = Fail(ENOSYS);
    for number in 0..600 {
        for architecture in [0x4000_0003, 0x4000_0028, 0x8000_0016, 0, ARCHITECTURE ^ 0x8000_0000] {
            assert_eq!(filtered(&program, architecture, number, &[0; 6]), nosys, "call {number} of {architecture:x}");
        }
        assert_eq!(filtered(&program, ARCHITECTURE, number | 0x4000_0000, &[0; 6]), nosys, "call {number} of x32");
    }
    assert_eq!(filtered(&program, ARCHITECTURE, u32::MAX, &[0; 6]), nosys);
}

#[test]
fn each_call_has_a_number_of_its_own() {
    let names: Vec<_> = RULES.iter().flat_map(|rule| rule.calls).collect();
    for one in &names {
        assert!(one.number <= LAST_NUMBER, "{} is known", one.name());
        let mut same = names.iter().filter(|other| other.number == one.number || other.name() == one.name());
        assert!(same.all(|other| *other == *one), "{} is one call", one.name());
    }
}

#[test]
fn filter_is_small() {
    let length = assemble().len();
    assert!((200..500).contains(&length), "{length} instructions");
}
