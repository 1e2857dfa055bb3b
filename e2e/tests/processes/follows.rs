//! Follows: an app beside any sidecar sees the log as it grows, in order and once, whichever sidecar is primary, and takes over
//! where it ends.

use rustix::process::Signal;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, FollowEvent, Lsn};
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::following::Following;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::http;
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary, wait_for_standby};
use tailwind_e2e::workload::{Input, Numbered};
use tailwind_protocol::socket::{ErrorCode, Role};

use crate::access::tls_group;

on_every_fabric!(
    standby_follows_as_the_log_grows,
    follower_at_the_successor_gets_its_turn_and_appends,
    followers_elsewhere_go_on_after_a_failover,
    follower_outlives_the_backup_it_reads_from,
    a_reader_follows_and_takes_no_appends,
    a_readers_certificate_suffices,
    a_read_anywhere_ends_at_the_end,
    a_read_beyond_the_end_is_refused_after_a_promotion,
    numbers_that_no_record_can_have_are_refused_everywhere,
    a_reader_that_is_told_to_end_ends_its_follows,
    what_was_trimmed_is_refused_everywhere,
    follower_of_a_primary_gets_its_turn_at_once,
    follows_are_bounded_and_can_be_stopped,
);

/// Follows that read from backups at once, as `FOLLOWS_MAX` in the sidecar.
const FOLLOWS_MAX: u64 = 8;
/// Records of several segments of 64 KiB: some closed and gone from memory, some open.
const RECORDS: u64 = 3000;

/// A group with a standby, the second sidecar, that knows the primary, the first one.
fn start(test: &TestContext, setup: Setup) -> Group {
    let group = test.start_group(setup).unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    group
}

fn standby_follows_as_the_log_grows(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    let mut app = primary(&group).unwrap();
    let mut end = append(&mut app, &input, 0, RECORDS).unwrap();
    let mut follower = Following::start(group.observer().clone(), 1, input);
    for _ in 0..rounds(10) {
        follower.wait_for_end(end).unwrap();
        end = append(&mut app, &input, end, RECORDS / 4).unwrap();
    }
    // One by one: each is news of its own.
    for _ in 0..100 {
        end = append(&mut app, &input, end, 1).unwrap();
        follower.wait_for(end).unwrap();
    }
    group.wait("a lag that is known", |group| follow_status(group, 1)["lag_ms"].is_u64()).unwrap();
    let status = follow_status(&group, 1);
    assert_eq!(status["stale"], false, "{status}");
    let metrics = metrics(&group, 1);
    assert!(metrics.contains("tailwind_followers{") && metrics.contains("tailwind_follow_lag_seconds{"), "{metrics}");
    let seen = follower.finish().unwrap();
    assert_eq!((seen.last, seen.turns), (end, 0));
    group.wait("the follower to be gone", |group| group.status(1)["clients"]["followers"] == 0).unwrap();
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&[]).unwrap();
}

/// The app knows everything when it is told so, and appends over the connection with which it followed.
fn follower_at_the_successor_gets_its_turn_and_appends(fabric: &str) {
    let test = TestContext::start();
    let (mut group, input) = (start(&test, test.setup_with_default_timeouts(fabric).unwrap()), test.input());
    let mut end = 0;
    for _ in 0..rounds(5) {
        let old = group.wait_for_primary().unwrap();
        wait_for_standby(&group, 1 - old, old).unwrap();
        let mut client = group.client(1 - old, false).unwrap();
        let mut follow = client.follow(Lsn(1)).unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS).unwrap();
        group.kill_sidecar(old).unwrap();
        let turn = loop {
            match follow.next_event().unwrap().unwrap() {
                FollowEvent::Record(lsn, payload) => assert_eq!(payload, input.record(lsn.0), "record {lsn}"),
                FollowEvent::Turn { next, epoch } => break (next, epoch),
                FollowEvent::CaughtUp { .. } | FollowEvent::Lag { .. } => {}
            }
        };
        assert_eq!(turn.0, Lsn(end + 1), "every acknowledged record came before the turn");
        assert!(follow.next_event().unwrap().is_none());
        drop(follow);
        end = append(&mut client, &input, end, 100).unwrap();
        assert_eq!(client.barrier().unwrap().last, Lsn(end));
        group.start_sidecar(old).unwrap();
    }
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// One of two standbys wins; the followers at both have everything, and the one at the other continues with the new primary's
/// records.
fn followers_elsewhere_go_on_after_a_failover(fabric: &str) {
    let test = TestContext::start();
    let setup = test.setup_with_default_timeouts(fabric).unwrap();
    let mut group = test.start_group(Setup { sidecars: 3, ..setup }).unwrap();
    let input = test.input();
    let mut followers: Vec<Following> =
        (0..3).map(|index| Following::start(group.observer().clone(), index, input)).collect();
    let mut end = 0;
    for _ in 0..rounds(5) {
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS / 2).unwrap();
        let old = group.wait_for_primary().unwrap();
        let turns: Vec<u64> = followers.iter().map(|follower| follower.seen().turns).collect();
        group.kill_sidecar(old).unwrap();
        let new = group.wait_for("a successor", |group| group.primary().filter(|new| *new != old)).unwrap();
        followers[new].wait_for_turn(turns[new] + 1).unwrap();
        assert!(followers[new].seen().last >= end, "{:?} at its turn, {end} was acknowledged", followers[new].seen());
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS / 2).unwrap();
        group.start_sidecar(old).unwrap();
        for follower in &mut followers {
            follower.wait_for(end).unwrap();
        }
    }
    followers.into_iter().for_each(|follower| assert_eq!(follower.finish().unwrap().last, end));
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// Killed, frozen, replaced by an empty one: the follower goes to another, and misses nothing.
fn follower_outlives_the_backup_it_reads_from(fabric: &str) {
    let test = TestContext::start();
    let (mut group, input) = (start(&test, test.setup_with_default_timeouts(fabric).unwrap()), test.input());
    let mut follower = Following::start(group.observer().clone(), 1, input);
    let mut end = 0;
    for round in 0..rounds(6) {
        group.wait_for_full_set().unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS / 2).unwrap();
        follower.wait_for(end).unwrap();
        let victim = group.wait_for("a backup that is read from", |group| {
            group.backup_named(follow_status(group, 1)["from"].as_str()?)
        });
        let victim = victim.unwrap();
        match round % 3 {
            0 => group.kill_backup(victim).unwrap(),
            1 => group.freeze(Process::Backup(victim)).unwrap(),
            _ => group.replace_backup(victim).unwrap(),
        }
        end = append(&mut primary(&group).unwrap(), &input, end, RECORDS / 2).unwrap();
        follower.wait_for(end).unwrap();
        match round % 3 {
            0 => group.start_backup(victim).unwrap(),
            1 => group.signal(Process::Backup(victim), Signal::CONT).unwrap(),
            _ => {}
        }
    }
    assert_eq!(follower.finish().unwrap().last, end);
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// A sidecar that only reads is told nothing but the config store. Its clients read their own writes, by positions.
fn a_reader_follows_and_takes_no_appends(fabric: &str) {
    const READER: usize = 2;
    let test = TestContext::start();
    let setup = test.setup_with_default_timeouts(fabric).unwrap();
    let mut group = test.start_group(Setup { sidecars: 3, readers: 1, ..setup }).unwrap();
    let input = test.input();
    group
        .wait("the reader to know the primary", |group| group.status(READER)["primary"]["name"] == "sidecar0")
        .unwrap();
    let ready = http::get(group.port(Process::Sidecar(READER)), "/readyz").unwrap();
    assert_eq!((ready.status, ready.body.starts_with(b"reader")), (200, true));

    let mut app = primary(&group).unwrap();
    let mut end = append(&mut app, &input, 0, RECORDS).unwrap();
    let mut follower = Following::start(group.observer().clone(), READER, input);
    let mut client = group.client(READER, false).unwrap();
    assert_eq!(client.welcome().role, Role::Reader);
    assert!(matches!(client.append(b"x"), Err(Error::NotPrimary { .. })));
    assert!(matches!(client.barrier(), Err(Error::NotPrimary { .. })));
    assert!(matches!(group.client(READER, true), Err(error) if format!("{error:#}").contains("reader")));
    for _ in 0..rounds(20) {
        end = append(&mut app, &input, end, 10).unwrap();
        let position = client.position().unwrap();
        assert_eq!((position.epoch.0, position.last), (1, Lsn(end)));
        follower.wait_for(end).unwrap();
    }

    // It follows through a failover, and is primary at no time. Positions come from the primary.
    drop(app);
    group.kill_sidecar(0).unwrap();
    group.wait("the standby to take over", |group| group.role(1) == "primary").unwrap();
    end = append(&mut primary(&group).unwrap(), &input, end, RECORDS).unwrap();
    follower.wait_for(end).unwrap();
    let position = group.wait_for("a position", |group| client_of(group, READER).position().ok());
    assert!(matches!(position, Ok(found) if found.last == Lsn(end)), "{position:?}");
    group.kill_sidecar(1).unwrap();
    // Nobody is primary, and nobody becomes it.
    let none = client.position();
    assert!(matches!(none, Err(Error::Retry { code: ErrorCode::Unavailable, .. })), "{none:?}");
    assert_eq!(records(&mut client, &input, 1, 0), end, "what is there can be read all the same");
    let stale = |group: &Group| follow_status(group, READER)["stale"] == true;
    group.wait("the reader to know that its view is old", stale).unwrap();
    assert_eq!(group.role(READER), "reader");
    let seen = follower.finish().unwrap();
    assert_eq!((seen.last, seen.turns), (end, 0));
    group.check_logs(&OUTAGE).unwrap();
}

/// With mutual TLS its certificate says `reader`: it follows, fetches what has left the memory, and is given positions, of the
/// next primary too.
fn a_readers_certificate_suffices(fabric: &str) {
    const READER: usize = 2;
    let test = TestContext::start();
    let setup = Setup { sidecars: 3, readers: 1, ..test.setup(fabric).unwrap() };
    let (mut group, _folder, _authority) = tls_group(&test, setup);
    let input = test.input();
    let mut end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    let mut follower = Following::start(group.observer().clone(), READER, input);
    follower.wait_for(end).unwrap();
    let position = |group: &Group| group.client(READER, false).ok()?.position().ok().map(|position| position.last.0);
    assert_eq!(group.wait_for("a position", position).unwrap(), end);
    group.kill_sidecar(0).unwrap();
    end = append(&mut primary(&group).unwrap(), &input, end, RECORDS).unwrap();
    follower.wait_for(end).unwrap();
    assert_eq!(group.wait_for("a position of the next primary", position).unwrap(), end);
    assert_eq!(follower.finish().unwrap().last, end);
    group.check_logs(&OUTAGE).unwrap();
}

fn a_read_anywhere_ends_at_the_end(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    let mut app = primary(&group).unwrap();
    let end = append(&mut app, &input, 0, RECORDS).unwrap();
    for sidecar in 0..2 {
        let mut client = group.client(sidecar, false).unwrap();
        // Off the primary the last ones may come a little later.
        group.wait("all records", |_| records(&mut client_of(&group, sidecar), &input, 1, 0) == end).unwrap();
        assert_eq!(records(&mut client, &input, 700, 50), 749);
        assert_eq!(records(&mut client, &input, end, 5), end);
        assert_eq!(records(&mut client, &input, end + 1, 5), 0);
        for beyond in [end + 2, end + 1000] {
            let refused = client.read_anywhere(Lsn(beyond), 0).and_then(|mut read| read.next_record().map(|_| ()));
            let said = |message: &str| message.contains(&format!("LSN {end} is the last acknowledged record"));
            assert!(
                matches!(&refused, Err(Error::Refused { code: ErrorCode::BeyondEnd, message }) if said(message)),
                "{refused:?}"
            );
        }
        // The connection continues.
        assert_eq!(records(&mut client, &input, 1, 1), 1);
    }
    assert!(matches!(
        client_of(&group, 1).read(Lsn(1), 0).and_then(|mut read| read.next_record().map(|_| ())),
        Err(Error::NotPrimary { .. })
    ));
    // A follow is refused, too: it would wait for records that another app knows already.
    let mut client = client_of(&group, 1);
    let beyond = client.follow(Lsn(end + 2)).and_then(|mut follow| {
        while follow.next_event()?.is_some() {}
        Ok(())
    });
    assert!(matches!(beyond, Err(Error::Refused { code: ErrorCode::BeyondEnd, .. })), "{beyond:?}");
    group.check_logs(&[]).unwrap();
}

fn what_was_trimmed_is_refused_everywhere(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    let mut app = primary(&group).unwrap();
    let end = append(&mut app, &input, 0, RECORDS).unwrap();
    let first = app.trim(Lsn(end / 2)).unwrap();
    assert!(first > Lsn(1));
    for sidecar in 0..2 {
        let trimmed = |_: &Group| {
            let mut client = client_of(&group, sidecar);
            let mut follow = client.follow(Lsn(1)).unwrap();
            loop {
                match follow.next_event() {
                    Err(Error::Trimmed { message }) => return Some(message),
                    // The board may tell of the trim a little later; and what is still there may be read.
                    Ok(Some(FollowEvent::CaughtUp { .. } | FollowEvent::Turn { .. })) => return None,
                    Ok(_) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let message = group.wait_for("the trim to be known", trimmed).unwrap();
        assert!(message.contains(&format!("begins at LSN {first}")), "{message}");
        let mut client = client_of(&group, sidecar);
        let mut follow = client.follow(first).unwrap();
        let mut next = first.0;
        while next <= end {
            if let Some(FollowEvent::Record(lsn, payload)) = follow.next_event().unwrap() {
                assert_eq!((lsn.0, payload), (next, &*input.record(next)));
                next += 1;
            }
        }
    }
    group.check_logs(&[]).unwrap();
}

fn follower_of_a_primary_gets_its_turn_at_once(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    let mut client = group.client(0, true).unwrap();
    let mut follow = client.follow(Lsn(1)).unwrap();
    for number in 1..=end {
        let event = follow.next_event().unwrap();
        let Some(FollowEvent::Record(lsn, payload)) = event else { panic!("{event:?} instead of record {number}") };
        assert_eq!((lsn.0, payload), (number, &*input.record(number)));
    }
    let turn = follow.next_event().unwrap();
    assert!(matches!(turn, Some(FollowEvent::Turn { next, .. }) if next == Lsn(end + 1)), "{turn:?}");
    drop(follow);
    append(&mut client, &input, end, 10).unwrap();
    let beyond = client.follow(Lsn(end + 100)).and_then(|mut follow| follow.next_event().map(|_| ()));
    assert!(matches!(beyond, Err(Error::Refused { code: ErrorCode::BeyondEnd, .. })), "{beyond:?}");
    group.check_logs(&[]).unwrap();
}

/// One more is refused with advice, and a place that a follow has left is free again, whether its client stopped it or died.
fn follows_are_bounded_and_can_be_stopped(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    let end = append(&mut primary(&group).unwrap(), &input, 0, 100).unwrap();
    let mut clients: Vec<Client> = (0..FOLLOWS_MAX).map(|_| client_of(&group, 1)).collect();
    let follows = clients.iter_mut().map(|client| {
        let mut follow = client.follow(Lsn(1)).unwrap();
        loop {
            match follow.next_event().unwrap() {
                Some(FollowEvent::Record(Lsn(1), _)) => break,
                // A member may be slow to show its board.
                Some(FollowEvent::CaughtUp { .. } | FollowEvent::Lag { .. }) => {}
                other => panic!("{other:?} instead of the first record"),
            }
        }
        follow
    });
    let mut follows: Vec<_> = follows.collect();
    let mut late = client_of(&group, 1);
    let refused = late.follow(Lsn(1)).and_then(|mut follow| follow.next_event().map(|_| ()));
    assert!(matches!(refused, Err(Error::Retry { code: ErrorCode::Busy, .. })), "{refused:?}");
    let next = follows.pop().unwrap().stop().unwrap();
    assert!(next <= Lsn(end + 1));
    group.wait("a place to be free", |group| group.status(1)["clients"]["followers"] == FOLLOWS_MAX - 1).unwrap();
    assert_eq!(records(&mut late, &input, 1, 0), end, "the connection that was refused continues");
    drop(follows);
    // Stopped before anything else of the connection is answered; and it continues.
    for client in &mut clients {
        assert_eq!(records(client, &input, 1, 0), end);
    }
    drop(clients);
    group.wait("all places to be free", |group| group.status(1)["clients"]["followers"] == 0).unwrap();
    group.check_logs(&[]).unwrap();
}

/// Nobody can refute the request while there is no primary, and the new primary's own log does.
fn a_read_beyond_the_end_is_refused_after_a_promotion(fabric: &str) {
    let test = TestContext::start();
    let (mut group, input) = (start(&test, test.setup_with_default_timeouts(fabric).unwrap()), test.input());
    let old = group.wait_for_primary().unwrap();
    wait_for_standby(&group, 1 - old, old).unwrap();
    let mut client = client_of(&group, 1 - old);
    let end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    group.kill_sidecar(old).unwrap();
    let refused = client.read_anywhere(Lsn(end + 5), 0).and_then(|mut read| read.next_record().map(|_| ()));
    assert!(matches!(refused, Err(Error::Refused { code: ErrorCode::BeyondEnd, .. })), "{refused:?}");
    group.check_logs(&OUTAGE).unwrap();
}

/// The first number after the largest one is none at all, so "no limit" must not look like it.
fn numbers_that_no_record_can_have_are_refused_everywhere(fabric: &str) {
    let test = TestContext::start();
    let (group, input) = (start(&test, test.setup(fabric).unwrap()), test.input());
    append(&mut primary(&group).unwrap(), &input, 0, 10).unwrap();
    let beyond = |what: &str, error: Option<Error>| {
        let refused = matches!(error, Some(Error::Refused { code: ErrorCode::BeyondEnd, .. }));
        assert!(refused, "{what}: {error:?}");
    };
    for (sidecar, leads) in [(0, true), (1, false)] {
        for from in [u64::MAX, u64::MAX - 1, 1 << 63].map(Lsn) {
            let followed = client_of(&group, sidecar).follow(from).and_then(|mut follow| follow.next_event().map(drop));
            beyond(&format!("follow {from} at sidecar {sidecar}"), followed.err());
            for limit in [0, 1] {
                let mut client = client_of(&group, sidecar);
                let read = client.read_anywhere(from, limit).and_then(|mut read| read.next_record().map(drop));
                beyond(&format!("read {from} anywhere at sidecar {sidecar}"), read.err());
                if leads {
                    let mut client = client_of(&group, sidecar);
                    let read = client.read(from, limit).and_then(|mut read| read.next_record().map(drop));
                    beyond(&format!("read {from}"), read.err());
                }
            }
        }
    }
    group.check_logs(&[]).unwrap();
}

/// Its tasks are cancelled, which is no panic.
fn a_reader_that_is_told_to_end_ends_its_follows(fabric: &str) {
    const READER: usize = 2;
    let test = TestContext::start();
    let setup = test.setup(fabric).unwrap();
    let mut group = test.start_group(Setup { sidecars: 3, readers: 1, ..setup }).unwrap();
    let input = test.input();
    let mut end = append(&mut primary(&group).unwrap(), &input, 0, RECORDS).unwrap();
    for _ in 0..rounds(3) {
        group.wait("the reader to be there", |group| group.role(READER) == "reader").unwrap();
        let mut clients: Vec<Client> = (0..4).map(|_| client_of(&group, READER)).collect();
        let mut follows: Vec<_> = clients.iter_mut().map(|client| client.follow(Lsn(1)).unwrap()).collect();
        // One has read nothing, the others are at any place.
        for (nth, follow) in follows.iter_mut().enumerate() {
            for _ in 0..nth * 1000 {
                follow.next_event().unwrap();
            }
        }
        group.signal(Process::Sidecar(READER), Signal::TERM).unwrap();
        assert_eq!(group.wait_for_end(Process::Sidecar(READER)).unwrap(), Some(0));
        group.start_sidecar(READER).unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, 100).unwrap();
    }
    group.check_logs(&[]).unwrap();
}

fn client_of(group: &Group, sidecar: usize) -> Client {
    group.client(sidecar, false).unwrap()
}

/// Reads anywhere, compares, and returns the last LSN; 0 if there was none.
fn records(client: &mut Client, input: &Numbered, from: u64, limit: u64) -> u64 {
    let mut last = 0;
    let mut read = client.read_anywhere(Lsn(from), limit).unwrap();
    while let Some((lsn, payload)) = read.next_record().unwrap() {
        assert_eq!(lsn.0, if last == 0 { from } else { last + 1 });
        assert_eq!(payload, input.record(lsn.0));
        last = lsn.0;
    }
    last
}

fn follow_status(group: &Group, sidecar: usize) -> serde_json::Value {
    group.status(sidecar)["follow"].clone()
}

fn metrics(group: &Group, sidecar: usize) -> String {
    String::from_utf8(http::get(group.port(Process::Sidecar(sidecar)), "/metrics").unwrap().body).unwrap()
}
