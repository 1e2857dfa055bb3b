//! Assembles the filter for the kernel from the table of rules: a program of classic BPF.
//!
//! Called by `start`. See seccomp(2), and `Documentation/userspace-api/seccomp_filter.rst` of the kernel. For a call that is
//! let through with any arguments, the kernel notes that once and does not run the filter again (since Linux 5.11), so
//! reads and writes do not pay for the length of the table.

use std::mem::offset_of;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, seccomp_data, sock_filter,
};
use rustix::io::Errno;

use super::Refusals;
use super::rules::{Half, LAST_NUMBER, Outcome, RULES, Rule, Test};

/// How the kernel names this machine, with all its ways to make a call.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

// The halves of arguments lie in this order, and are those of 64 bits.
const _: () = assert!(cfg!(all(target_endian = "little", target_pointer_width = "64")));

/// The filter that refuses by itself.
#[cfg(test)]
pub(super) fn assemble() -> Vec<sock_filter> {
    assemble_with(Refusals::Unseen)
}

/// The filter: at most as many instructions as the kernel takes (4,096).
pub(super) fn assemble_with(refusals: Refusals) -> Vec<sock_filter> {
    let mut program = vec![load(offset_of!(seccomp_data, arch))];
    program.extend(unless(compare(BPF_JEQ, ARCHITECTURE), &[refuse(refusals, Errno::NOSYS)]));
    program.push(load(offset_of!(seccomp_data, nr)));
    program.extend(when(compare(BPF_JGT, LAST_NUMBER), &[refuse(refusals, Errno::NOSYS)]));
    for number in numbers() {
        let rules = RULES.iter().filter(|rule| rule.calls.iter().any(|name| name.number == number));
        let mut body: Vec<sock_filter> = rules.flat_map(|rule| instructions(refusals, rule)).collect();
        body.push(answer(SECCOMP_RET_ALLOW));
        program.extend(when(compare(BPF_JEQ, number), &body));
    }
    program.push(answer(SECCOMP_RET_ALLOW));
    assert!(program.len() <= libc::BPF_MAXINSNS as usize, "the kernel takes a filter of this length");
    program
}

/// The calls of the table, each once.
fn numbers() -> Vec<u32> {
    let mut numbers: Vec<u32> = RULES.iter().flat_map(|rule| rule.calls).map(|name| name.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Ends with the rule's outcome if one of its cases holds, else runs on behind.
fn instructions(refusals: Refusals, rule: &Rule) -> Vec<sock_filter> {
    let outcome = match rule.outcome {
        Outcome::Stop(_) => answer(SECCOMP_RET_USER_NOTIF),
        Outcome::Refuse(errno) => refuse(refusals, errno),
        Outcome::Pass => answer(SECCOMP_RET_ALLOW),
    };
    let case = |tests: &&[Test]| tests.iter().rev().fold(vec![outcome], |then, test| guard(test, &then));
    rule.cases.iter().flat_map(case).collect()
}

/// Runs `then` if the test holds, else skips it.
fn guard(test: &Test, then: &[sock_filter]) -> Vec<sock_filter> {
    let half = match test.half {
        Half::Lower => 0,
        Half::Upper => size_of::<u32>(),
    };
    let argument = offset_of!(seccomp_data, args) + usize::from(test.argument) * size_of::<u64>();
    let mut program = vec![load(argument + half)];
    if test.mask != u32::MAX {
        program.push(instruction(BPF_ALU | BPF_AND | BPF_K, test.mask));
    }
    let comparison = compare(BPF_JEQ, test.value);
    program.extend(if test.equal { when(comparison, then) } else { unless(comparison, then) });
    program
}

/// Runs `then` if the comparison holds, else skips it.
fn when(comparison: sock_filter, then: &[sock_filter]) -> Vec<sock_filter> {
    let mut program = vec![sock_filter { jf: distance(then), ..comparison }];
    program.extend_from_slice(then);
    program
}

/// Skips `then` if the comparison holds, else runs it.
fn unless(comparison: sock_filter, then: &[sock_filter]) -> Vec<sock_filter> {
    let mut program = vec![sock_filter { jt: distance(then), ..comparison }];
    program.extend_from_slice(then);
    program
}

fn distance(skipped: &[sock_filter]) -> u8 {
    u8::try_from(skipped.len()).expect("what is skipped is as short as a jump is")
}

fn load(offset: usize) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, u32::try_from(offset).expect("an offset in a small struct"))
}

fn compare(operator: u32, value: u32) -> sock_filter {
    instruction(BPF_JMP | operator | BPF_K, value)
}

fn answer(action: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, action)
}

fn refuse(refusals: Refusals, errno: Errno) -> sock_filter {
    answer(match refusals {
        Refusals::Unseen => SECCOMP_RET_ERRNO | errno.raw_os_error().unsigned_abs(),
        Refusals::Counted => SECCOMP_RET_USER_NOTIF,
    })
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: u16::try_from(code).expect("codes have 16 bits"), jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests;
