//! What is told of the differences between two rounds.

use tailwind_report::sidecar::{ReaderReport, StandbyReport, Takeover};
use tailwind_report::verdict::verdict;

use super::*;
use crate::model::tests::{report, round};

fn member(name: &str, state: MemberState, in_set: bool) -> MemberReport {
    let is_gone = matches!(state, MemberState::Lost | MemberState::Unreachable);
    MemberReport {
        name: name.to_owned(),
        state,
        in_set,
        since_ms: is_gone.then_some(300),
        why: is_gone.then(|| "connection refused".to_owned()),
        segments_missing: (state == MemberState::CatchingUp).then_some(4),
        ..MemberReport::default()
    }
}

fn well(name: &str) -> MemberReport {
    member(name, MemberState::InSet, true)
}

fn leads(name: &str, epoch: u64, members: Vec<MemberReport>) -> Report<SidecarReport> {
    report(name, "primary", epoch).map(|content| {
        let mut content = SidecarReport { members, members_wanted: 3, min_in_sync: 2, ..content };
        content.verdict = verdict(&content);
        content
    })
}

fn told(before: &Report<SidecarReport>, after: &Report<SidecarReport>) -> Vec<String> {
    let found = changes(&round(vec![Ok(before.clone())]), &round(vec![Ok(after.clone())]));
    found.into_iter().map(|change| change.text).collect()
}

#[test]
fn nothing_is_told_of_what_stays() {
    let group = leads("first", 1, vec![well("b0"), member("b1", MemberState::Lost, false)]);
    let mut later = group.clone();
    later.content.members[1].since_ms = Some(99_000);
    later.content.members[1].why = Some("no answer".to_owned());
    assert_eq!(told(&group, &later), Vec::<String>::new());
}

#[test]
fn a_death_a_swap_and_a_join() {
    let set = |third: MemberReport, more: Vec<MemberReport>| {
        leads("first", 1, [vec![well("b0"), well("b1"), third], more].concat())
    };
    let all = set(well("b2"), vec![member("b3", MemberState::Spare, false)]);
    let lost = set(member("b2", MemberState::Lost, true), vec![member("b3", MemberState::Spare, false)]);
    let swapped = set(member("b2", MemberState::Lost, false), vec![member("b3", MemberState::Spare, false)]);
    let filling = set(member("b2", MemberState::Lost, false), vec![member("b3", MemberState::CatchingUp, false)]);
    let joined = set(member("b2", MemberState::Lost, false), vec![well("b3")]);
    let back = set(member("b2", MemberState::Spare, false), vec![well("b3")]);
    assert_eq!(told(&all, &lost), ["b2 lost: connection refused"]);
    assert_eq!(told(&lost, &swapped), ["b2 left the set: appends continue without it"]);
    assert_eq!(told(&swapped, &filling), ["b3 catching up, 4 segments to copy"]);
    assert_eq!(told(&filling, &joined), ["b3 joined the set"]);
    assert_eq!(told(&joined, &back), ["b2 answers again: it is a spare"]);
}

#[test]
fn a_failover_is_told_with_its_time() {
    let first = leads("first", 1, vec![well("b0"), well("b1")]);
    let standby = report("second", "standby", 1);
    let mut second = leads("second", 2, vec![well("b0"), well("b1")]);
    second.content.failover_ms = Some(41);
    let gone = || Err("connection refused".to_owned());
    let texts = |before: Round, after: Round| {
        changes(&before, &after).into_iter().map(|change| change.text).collect::<Vec<_>>()
    };
    let before = round(vec![Ok(first), Ok(standby.clone())]);
    let between = round(vec![gone(), Ok(standby)]);
    let after = round(vec![gone(), Ok(second.clone())]);
    assert_eq!(
        texts(before.clone(), between.clone()),
        ["first does not answer: connection refused", "first no longer leads (epoch 1)"]
    );
    assert_eq!(texts(between, after.clone()), ["second is primary in epoch 2, 41 ms after it missed the primary"]);
    let at_once = texts(before, after.clone());
    assert_eq!(at_once[1], "second is primary in epoch 2, 41 ms after it missed the primary");
    let restarted = round(vec![Ok(report("first", "standby", 2)), Ok(second)]);
    assert_eq!(texts(after.clone(), restarted), ["first answers"]);
    let knows_the_set = report("second", "standby", 1).map(|content| SidecarReport {
        members: vec![well("b0"), member("b1", MemberState::Unreachable, true)],
        ..content
    });
    let found = texts(round(vec![gone(), Ok(knows_the_set)]), after);
    assert_eq!(found[1..], ["b1 answers again"], "what a standby knows is compared");
}

#[test]
fn what_the_next_primary_misses_is_told() {
    let first = leads("first", 1, vec![well("b0"), well("b1"), well("b2")]);
    let second = leads("second", 2, vec![well("b0"), well("b1"), member("b2", MemberState::Unreachable, false)]);
    let found = told(&first, &second);
    assert_eq!(found[1..], ["b2 left the set: b2 unreachable: connection refused"], "{found:?}");
    let forgotten = leads("second", 2, vec![well("b0"), well("b1")]);
    assert_eq!(told(&first, &forgotten)[1..], ["b2 left the set"]);
}

#[test]
fn waits_of_appends_begin_and_end() {
    let enough = leads("first", 1, vec![well("b0"), well("b1")]);
    let short = leads("first", 1, vec![well("b0"), member("b1", MemberState::Lost, true)]);
    let found = told(&enough, &short);
    assert_eq!(found[0], "b1 lost: connection refused");
    assert!(found[1].starts_with("appends wait: 1 of 2 copies"), "{found:?}");
    assert_eq!(told(&short, &enough), ["b1 answers again", "appends continue"]);
}

#[test]
fn standbys_and_readers_come_and_go() {
    let with = |standby: Option<(bool, bool)>, reader: Option<bool>| {
        leads("first", 1, vec![well("b0")]).map(|content| SidecarReport {
            standbys: standby
                .map(|(ready, silent)| StandbyReport {
                    name: "second".to_owned(),
                    takeover: Some(Takeover { ready, why_not: (!ready).then(|| "fenced".to_owned()) }),
                    silent,
                    ..StandbyReport::default()
                })
                .into_iter()
                .collect(),
            readers: reader
                .map(|silent| ReaderReport { name: "feed".to_owned(), silent, ..ReaderReport::default() })
                .into_iter()
                .collect(),
            ..content
        })
    };
    let (ready, unable, silent) = (Some((true, false)), Some((false, false)), Some((true, true)));
    let told = |before, after| told(&before, &after);
    assert_eq!(
        told(with(None, None), with(ready, Some(false))),
        ["standby second is ready to take over", "reader feed is there"]
    );
    assert_eq!(told(with(ready, None), with(unable, None)), ["standby second could not take over: fenced"]);
    assert_eq!(told(with(unable, None), with(ready, None)), ["standby second is ready to take over"]);
    assert_eq!(
        told(with(ready, Some(false)), with(silent, Some(true))),
        ["standby second is silent", "reader feed is silent"]
    );
    assert_eq!(told(with(silent, None), with(ready, None)), ["standby second is ready to take over"]);
}
