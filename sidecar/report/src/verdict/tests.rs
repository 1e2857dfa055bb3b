//! Every combination of what a verdict rests on, and the lines of the main situations.

use super::*;
use crate::readiness::{AppendsWait, AppendsWaitFor, Waiting, WaitsFor};
use crate::sidecar::{FollowReport, PrimaryReport, Takeover};
use crate::table::{CleanerReport, TableReport};

fn member(name: &str, state: MemberState, in_set: bool) -> MemberReport {
    let is_gone = matches!(state, MemberState::Lost | MemberState::Unreachable);
    MemberReport {
        name: name.to_owned(),
        state,
        in_set,
        since_ms: is_gone.then_some(12_345),
        why: is_gone.then(|| "connection refused".to_owned()),
        ..MemberReport::default()
    }
}

fn ready() -> Takeover {
    Takeover { ready: true, why_not: None }
}

fn unable() -> Takeover {
    Takeover { ready: false, why_not: Some("1 of 3 members answers, 2 needed".to_owned()) }
}

fn standby_is(takeover: Option<Takeover>, silent: bool) -> StandbyReport {
    StandbyReport { name: "second".to_owned(), takeover, silent, heard_ms_ago: 61_000, ..StandbyReport::default() }
}

/// A primary with `copies` members, `lost` ones that are in the set still, and these others.
fn primary(copies: usize, lost: usize, others: Vec<MemberReport>, standbys: Vec<StandbyReport>) -> SidecarReport {
    let in_set = (0..copies).map(|n| member(&format!("b{n}"), MemberState::InSet, true));
    let lost = (copies..copies + lost).map(|n| member(&format!("b{n}"), MemberState::Lost, true));
    SidecarReport {
        role: ROLE_PRIMARY.to_owned(),
        members_wanted: 3,
        min_in_sync: 2,
        members: in_set.chain(lost).chain(others).collect(),
        standbys,
        ..SidecarReport::default()
    }
}

fn line(report: &SidecarReport) -> String {
    verdict(report).to_string()
}

#[test]
fn every_combination_at_a_primary() {
    let standbys = [
        (vec![], false, "no standby"),
        (vec![standby_is(None, true)], false, "no standby (second was last heard 61 s ago)"),
        (vec![standby_is(Some(ready()), true)], false, "no standby (second"),
        (vec![standby_is(None, false)], false, "second could not take over: it has not asked the members yet"),
        (vec![standby_is(Some(unable()), false)], false, "second could not take over: 1 of 3 members"),
        (vec![standby_is(Some(ready()), false)], true, "standby ready"),
        (vec![standby_is(Some(unable()), false), standby_is(Some(ready()), false)], true, "standby ready"),
        (vec![standby_is(Some(ready()), false), standby_is(Some(ready()), false)], true, "2 standbys ready"),
    ];
    let waits = [None, Some(AppendsWait { what: AppendsWaitFor::Room, why: "b0: its folder is full".to_owned() })];
    let mut seen = [0; 3];
    for (standbys, has_standby, says) in &standbys {
        for (copies, lost, damaged, wait) in
            itertools(0..=4, 0..=3, [0, 2].into_iter()).flat_map(|(c, l, d)| waits.clone().map(|wait| (c, l, d, wait)))
        {
            let mut report = primary(copies, lost, Vec::new(), standbys.clone());
            report.members.iter_mut().take(1).for_each(|member| member.damaged = damaged);
            report.appends_wait.clone_from(&wait);
            let found = verdict(&report);
            let is_damaged = damaged > 0 && copies + lost > 0;
            let expected = if wait.is_some() || copies < 2.min(copies + lost) {
                VerdictState::Waiting
            } else if copies >= 3 && *has_standby && !is_damaged {
                VerdictState::Ok
            } else {
                VerdictState::Degraded
            };
            seen[expected as usize] += 1;
            assert_eq!(found.state, expected, "{copies} copies, {lost} lost, {damaged} damaged, {wait:?}: {found}");
            match expected {
                VerdictState::Waiting => assert!(found.text.starts_with("appends wait: "), "{found}"),
                _ => assert!(found.text.contains(says) && found.text.contains(&format!("{copies} of 3")), "{found}"),
            }
            let names_lost = lost > 0 && copies < 3 && wait.is_none();
            assert!(!names_lost || found.text.contains(&format!("b{copies} lost 12 s ago")), "{found}");
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

fn itertools(
    first: std::ops::RangeInclusive<usize>,
    second: std::ops::RangeInclusive<usize>,
    third: impl Iterator<Item = u64> + Clone,
) -> impl Iterator<Item = (usize, usize, u64)> {
    first.flat_map(move |a| {
        let third = third.clone();
        second.clone().flat_map(move |b| third.clone().map(move |c| (a, b, c)))
    })
}

#[test]
fn the_lines_of_a_primary() {
    let with_standby = || vec![standby_is(Some(ready()), false)];
    assert_eq!(line(&primary(3, 0, vec![], with_standby())), "OK 3 of 3 copies, standby ready");
    let lost = member("b1", MemberState::Lost, false);
    assert_eq!(
        line(&primary(2, 0, vec![lost.clone()], vec![])),
        "DEGRADED 2 of 3 copies (b1 lost 12 s ago: connection refused), no standby"
    );
    let mut joining = member("b3", MemberState::CatchingUp, false);
    joining.segments_missing = Some(40);
    assert_eq!(
        line(&primary(2, 0, vec![joining, lost.clone()], with_standby())),
        "DEGRADED 2 of 3 copies (b1 lost 12 s ago: connection refused; b3 catching up, 40 segments to copy), standby ready"
    );
    let spares = |count: usize| (0..count).map(|n| member(&format!("s{n}"), MemberState::Unreachable, false)).collect();
    assert_eq!(line(&primary(3, 0, spares(5), with_standby())), "OK 3 of 3 copies, standby ready");
    let text = line(&primary(2, 0, spares(5), with_standby()));
    assert!(text.contains("s2 unreachable for 12 s: connection refused; 2 more)"), "{text}");
    let text = line(&primary(2, 0, vec![], with_standby()));
    assert_eq!(text, "DEGRADED 2 of 3 copies (no other backup is known), standby ready");
    let short = "WAITING appends wait: 1 of 2 copies that they need (b1 lost 12 s ago: connection refused). Bring back what is lost, or \
         start another backup that this sidecar knows";
    let mut waits = primary(1, 1, vec![], with_standby());
    assert_eq!(line(&waits), short);
    let (what, why) = (AppendsWaitFor::Members, "b1 lost".to_owned());
    waits.appends_wait = Some(AppendsWait { what, why });
    assert_eq!(line(&waits), short, "whether anybody appends or not");
    let mut rotten = primary(3, 0, vec![], with_standby());
    rotten.members[0].damaged = 2;
    let expected =
        "DEGRADED 3 of 3 copies, b0 is being sent 2 segments again that are gone or corrupt there, standby ready";
    assert_eq!(line(&rotten), expected);
    rotten.members[0].damaged = 1;
    let expected =
        "DEGRADED 3 of 3 copies, b0 is being sent 1 segment again that is gone or corrupt there, standby ready";
    assert_eq!(line(&rotten), expected);
    let mut single = primary(1, 0, vec![], with_standby());
    (single.members_wanted, single.min_in_sync) = (1, 1);
    assert_eq!(line(&single), "OK 1 of 1 copy, standby ready");
}

#[test]
fn a_table_that_is_not_cleaned_degrades_its_primary() {
    let ready = || vec![standby_is(Some(ready()), false)];
    let with = |state| {
        let cleaner = Some(CleanerReport { state, segment: Some(7) });
        let table = Some(TableReport { cleaner, ..TableReport::default() });
        verdict(&SidecarReport { table, ..primary(3, 0, vec![], ready()) })
    };
    assert_eq!(with(CleanerState::Moving), verdict(&primary(3, 0, vec![], ready())));
    let stopped = with(CleanerState::NotCleaned);
    assert_eq!(stopped.state, VerdictState::Degraded);
    let words = "its table is NOT CLEANED: segment 7 has a record that is not keyed, standby ready";
    assert!(stopped.text.ends_with(words), "{stopped}");
}

#[test]
fn what_is_missing_can_be_told_without_times() {
    let mut report = primary(2, 0, vec![member("b1", MemberState::Lost, false)], vec![]);
    let told = why_copies_are_missing(&report, false);
    assert_eq!(told.as_deref(), Some("b1 lost: connection refused"));
    report.members[2].since_ms = Some(99_000);
    assert_eq!(why_copies_are_missing(&report, false), told);
}

#[test]
fn every_combination_away_from_the_primary() {
    let waiting = Waiting { what: WaitsFor::Members, why: "1 of 2 members answers; missing: b1".to_owned() };
    let first = PrimaryReport { name: "first".to_owned(), ..PrimaryReport::default() };
    let follow = |lag_ms, stale| FollowReport { from: "b1".to_owned(), lsn: 7, lag_ms, stale };
    let follows = [None, Some(follow(Some(25), false)), Some(follow(Some(9000), true)), Some(follow(None, true))];
    for role in [ROLE_STANDBY, ROLE_READER, "recovering", "of tomorrow"] {
        for waits in [None, Some(waiting.clone())] {
            for named in [None, Some(first.clone())] {
                for takeover in [None, Some(ready()), Some(unable())] {
                    for (follow, fenced) in follows.iter().flat_map(|follow| [(follow, false), (follow, true)]) {
                        let report = SidecarReport {
                            role: role.to_owned(),
                            waiting: waits.clone(),
                            primary: named.clone(),
                            takeover: takeover.clone(),
                            follow: follow.clone(),
                            fenced,
                            ..SidecarReport::default()
                        };
                        let found = verdict(&report);
                        let knows = waits.is_none() && named.is_some();
                        let expected = match role {
                            ROLE_STANDBY if !knows || fenced => VerdictState::Waiting,
                            ROLE_STANDBY if takeover == Some(ready()) => VerdictState::Ok,
                            ROLE_READER if !knows => VerdictState::Waiting,
                            ROLE_READER if follow.as_ref().is_none_or(|follow| !follow.stale) => VerdictState::Ok,
                            ROLE_STANDBY | ROLE_READER => VerdictState::Degraded,
                            _ => VerdictState::Waiting,
                        };
                        assert_eq!(found.state, expected, "{report:?}");
                        let told = waits.is_none() || fenced || found.text.contains("missing: b1");
                        assert!(told && !found.text.is_empty(), "{found}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_lines_away_from_the_primary() {
    let report = |role: &str| SidecarReport {
        role: role.to_owned(),
        primary: Some(PrimaryReport { name: "first".to_owned(), ..PrimaryReport::default() }),
        ..SidecarReport::default()
    };
    let mut standby = report(ROLE_STANDBY);
    assert_eq!(line(&standby), "DEGRADED standby of first, has not asked the members yet");
    standby.takeover = Some(ready());
    assert_eq!(line(&standby), "OK standby of first, could take over");
    standby.takeover = Some(unable());
    assert_eq!(line(&standby), "DEGRADED standby of first, could not take over: 1 of 3 members answers, 2 needed");
    let mut reader = report(ROLE_READER);
    assert_eq!(line(&reader), "OK reader of first's log; no client reads here");
    let why = "the ReplicaGroup has spec.reads: Disabled".to_owned();
    reader.waiting = Some(Waiting { what: WaitsFor::Reads, why });
    assert_eq!(line(&reader), "WAITING the ReplicaGroup has spec.reads: Disabled");
    assert_eq!(line(&report("recovering")), "WAITING no primary: this sidecar is taking over");
}

#[test]
fn a_line_stays_one() {
    let waiting = Waiting { what: WaitsFor::ConfigStore, why: "two\nlines".to_owned() };
    let report = SidecarReport { waiting: Some(waiting), ..SidecarReport::default() };
    assert_eq!(line(&report), "WAITING no primary: two lines");
}

#[test]
fn times_are_told_in_the_largest_unit_that_fits() {
    for (ms, text) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (7_199_999, "119 min"),
        (7_200_000, "2 h"),
        (172_800_000, "2 d"),
    ] {
        assert_eq!(span(ms), text);
    }
    assert_eq!((ago(20), ago(2500)), ("just now".to_owned(), "2 s ago".to_owned()));
    assert_eq!(span(u64::MAX), "213503982334 d");
}
