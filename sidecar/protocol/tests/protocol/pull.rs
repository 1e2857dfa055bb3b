//! What a pull tries, in which order, and how it ends.

use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::pull::{CopyError, Input, Output, Pull, Way};
use tailwind_protocol::rpc::{Caller, PullRequest, PullSource, Purpose, Refusal};

const SEGMENT: SegmentId = SegmentId(3);

fn request(sources: &[&str]) -> PullRequest {
    let source = |name: &&str| PullSource { member: name.parse().expect("a name"), control: Vec::new() };
    PullRequest {
        caller: Caller { group: "g".parse().expect("a name"), log: LogId(1), epoch: Epoch(5) },
        identity: SegmentIdentity {
            log: LogId(1),
            segment: SEGMENT,
            epoch: Epoch(4),
            generation: Generation(9),
            size: SegmentSize::MIN,
        },
        closure: Closure { first: Lsn(1), last: Lsn(2), end: Offset(168), chain: Chain(7) },
        durability: Durability::Flushed,
        sources: sources.iter().map(source).collect(),
    }
}

fn failed(why: &str) -> Input {
    Input::Copied(Err(CopyError::Failed(why.to_owned())))
}

fn corrupt() -> Input {
    Input::Closed(Err(Refusal::Corrupt { segment: SEGMENT }))
}

/// Opens, and returns the source that it copies from and how.
fn copy(pull: &mut Pull, opens: &Output) -> (String, Way) {
    let Output::Open(open) = opens else { panic!("{opens:?}") };
    assert_eq!((open.purpose, open.identity.segment, open.caller.epoch), (Purpose::Install, SEGMENT, Epoch(5)));
    assert_eq!(open.durability, Durability::Flushed);
    match pull.step(Input::Opened(Ok(()))) {
        Output::Copy(source, way) => (source.member.to_string(), way),
        other => panic!("{other:?}"),
    }
}

/// Copies, and closes what came.
fn close(pull: &mut Pull, opens: &Output) -> (String, Way) {
    let copied = copy(pull, opens);
    let Output::Close(close) = pull.step(Input::Copied(Ok(()))) else { panic!("it closes what came") };
    assert_eq!((close.identity.segment, close.closure.last, close.caller.epoch), (SEGMENT, Lsn(2), Epoch(5)));
    copied
}

#[test]
fn memory_first_then_the_disk() {
    let (mut pull, next) = Pull::start(request(&["m1", "m2"]), false);
    assert_eq!(copy(&mut pull, &next), ("m1".to_owned(), Way::Memory));
    let next = pull.step(failed("on disk"));
    assert_eq!(close(&mut pull, &next), ("m1".to_owned(), Way::Fetch));
    assert_eq!(pull.step(Input::Closed(Ok(()))), Output::End(Ok(())));
}

/// Each way to it would take as long to fail, and the caller does not wait indefinitely.
#[test]
fn a_silent_source_is_passed_over_at_once() {
    let (mut pull, next) = Pull::start(request(&["m1", "m2", "m3"]), false);
    assert_eq!(copy(&mut pull, &next), ("m1".to_owned(), Way::Memory));
    let silent = || Input::Copied(Err(CopyError::Silent("no answer".to_owned())));
    let next = pull.step(silent());
    assert_eq!(copy(&mut pull, &next), ("m2".to_owned(), Way::Memory));
    let next = pull.step(failed("on disk"));
    assert_eq!(copy(&mut pull, &next), ("m2".to_owned(), Way::Fetch));
    let next = pull.step(silent());
    assert_eq!(close(&mut pull, &next), ("m3".to_owned(), Way::Memory));
    assert_eq!(pull.step(Input::Closed(Ok(()))), Output::End(Ok(())));
}

#[test]
fn a_source_of_corrupt_bytes_looks_before_the_next() {
    let (mut pull, next) = Pull::start(request(&["m1", "m2"]), false);
    assert_eq!(close(&mut pull, &next), ("m1".to_owned(), Way::Memory));
    let next = pull.step(corrupt());
    assert_eq!(close(&mut pull, &next), ("m1".to_owned(), Way::CheckedFetch));
    let next = pull.step(corrupt());
    assert_eq!(close(&mut pull, &next), ("m2".to_owned(), Way::Memory));
    assert_eq!(pull.step(Input::Closed(Ok(()))), Output::End(Ok(())));
}

#[test]
fn without_a_source_it_is_refused_with_reasons() {
    let (mut pull, mut next) = Pull::start(request(&["m1", "m2"]), false);
    for (name, way) in [("m1", Way::Memory), ("m1", Way::Fetch), ("m2", Way::Memory), ("m2", Way::Fetch)] {
        assert_eq!(copy(&mut pull, &next), (name.to_owned(), way));
        next = pull.step(failed(&format!("{name} is gone")));
    }
    let Output::End(Err(Refusal::NoSuchCopy { segment, why })) = next else { panic!("{next:?}") };
    assert_eq!(segment, SEGMENT);
    assert!(why.contains("m1: m1 is gone") && why.contains("m2: m2 is gone"), "{why}");
    let (_, next) = Pull::start(request(&[]), false);
    assert!(matches!(next, Output::End(Err(Refusal::NoSuchCopy { .. }))), "{next:?}");
}

/// They are the caller's to hear: a fence above all.
#[test]
fn refusals_of_the_own_machine_end_it() {
    let fenced = || Refusal::Fenced { promised: Epoch(6) };
    let (mut pull, _) = Pull::start(request(&["m1"]), false);
    assert_eq!(pull.step(Input::Opened(Err(fenced()))), Output::End(Err(fenced())));
    let (mut pull, next) = Pull::start(request(&["m1"]), false);
    close(&mut pull, &next);
    assert_eq!(pull.step(Input::Closed(Err(fenced()))), Output::End(Err(fenced())));
}

#[test]
fn what_is_here_is_only_closed() {
    let (mut pull, next) = Pull::start(request(&["m1"]), true);
    assert!(matches!(next, Output::Close(_)), "{next:?}");
    assert_eq!(pull.step(Input::Closed(Ok(()))), Output::End(Ok(())));
    // It has rotted since.
    let (mut pull, _) = Pull::start(request(&["m1"]), true);
    let next = pull.step(corrupt());
    assert_eq!(close(&mut pull, &next), ("m1".to_owned(), Way::CheckedFetch));
}
