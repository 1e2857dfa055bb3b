//! Gets off the primary at the append path, turn by turn: out of members' memory, and through changes of the role.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::loop_harness::{Client, LoopHarness, ack};
use crate::mirrored_members::{MirroredMembers, Over, SIZE};
use crate::tables::{apply, put};
use tailwind_protocol::config::Cut;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::socket::{GET_FRESH, GET_NO_VALUE, GET_OLDER, READ_ANYWHERE, Request, Response};
use tailwind_protocol::table::getter::GETS_MAX;
use tailwind_protocol::table::record::{Key, Revision};
use tailwind_sidecar::path::{Brought, ClientRequest, Command};

/// A condition that is not met after so long is not going to be.
const PATIENCE: Duration = Duration::from_secs(30);
/// Gets of one connection that may be unanswered.
const UNANSWERED_MAX: usize = 32;

/// A standby of a table with `a` and `b`, and its members.
fn standby(over: Over) -> (LoopHarness, MirroredMembers) {
    let mut harness = LoopHarness::of_table(SIZE, 1000);
    harness.stand_by(2);
    harness.settle();
    let mut members = MirroredMembers::new(over);
    members.put("a", b"one");
    members.put("b", b"");
    members.tell_configuration(&harness);
    (harness, members)
}

fn get(client: &mut Client, key: &str, least: u64, flags: u16) {
    client.send(&[Request::Get { key: Key::new(key.as_bytes()).unwrap(), least, flags }]);
}

fn value(revision: u64, as_of: u64, value: &[u8]) -> String {
    let revision = Revision::of(Lsn(revision));
    format!("{:?}", Response::Value { revision, as_of, value, older: false, stale: false })
}

/// The next frame to this client, of which nobody asks here whether it is stale.
fn hear(harness: &mut LoopHarness, members: &mut MirroredMembers, client: &mut Client) -> String {
    heard_with(harness, members, client).replace("stale: true", "stale: false")
}

fn heard_with(harness: &mut LoopHarness, members: &mut MirroredMembers, client: &mut Client) -> String {
    until(harness, members, |_| client.heard())
}

fn until<T>(
    harness: &mut LoopHarness,
    members: &mut MirroredMembers,
    mut met: impl FnMut(&mut MirroredMembers) -> Option<T>,
) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        harness.path.sleep(Duration::from_micros(100)).unwrap();
        harness.path.turn().unwrap();
        members.serve(harness);
        if let Some(found) = met(members) {
            return found;
        }
        assert!(Instant::now() < give_up, "it has not come");
    }
}

/// Time passes in which nothing must come for this client: the board is looked at several times.
fn hears_nothing(harness: &mut LoopHarness, members: &mut MirroredMembers, client: &mut Client) {
    for _ in 0..200 {
        harness.path.sleep(Duration::from_micros(100)).unwrap();
        harness.path.turn().unwrap();
        members.serve(harness);
    }
    assert_eq!(client.heard(), None);
}

fn over_each(test: impl Fn(LoopHarness, MirroredMembers)) {
    for over in Over::all() {
        let (harness, members) = standby(over);
        test(harness, members);
    }
}

#[test]
fn gets_off_the_primary_are_read_out_of_a_mirror() {
    over_each(|mut harness, mut members| {
        let mut client = harness.client();
        get(&mut client, "a", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
        get(&mut client, "b", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(2, 2, b""));
        get(&mut client, "a", 0, GET_NO_VALUE);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b""));
        get(&mut client, "c", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(0, 2, b""));
        // What is acknowledged and not published yet may be seen, and is what the connection has seen from then on.
        members.put_unpublished("a", b"two");
        get(&mut client, "a", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(3, 3, b"two"));
        get(&mut client, "b", 0, 0);
        hears_nothing(&mut harness, &mut members, &mut client);
        members.published = 3;
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(2, 3, b""));
        assert_eq!((members.fetches, &members.asked[..]), (0, &[][..]));
    });
}

#[test]
fn over_shared_memory_a_get_takes_one_turn() {
    let (mut harness, mut members) = standby(Over::Shm);
    let mut client = harness.client();
    get(&mut client, "a", 0, 0);
    hear(&mut harness, &mut members, &mut client);
    get(&mut client, "b", 0, 0);
    harness.path.sleep(Duration::ZERO).unwrap();
    harness.path.turn().unwrap();
    assert_eq!(client.heard().unwrap().replace("stale: true", "stale: false"), value(2, 2, b""));
}

#[test]
fn a_get_takes_three_reads_or_one_lookup() {
    const GETS: u32 = 100;
    for over in Over::all() {
        let (mut harness, mut members) = standby(over);
        let mut client = harness.client();
        get(&mut client, "a", 0, 0);
        hear(&mut harness, &mut members, &mut client);
        let asked = |members: &MirroredMembers| {
            let asked = &members.reading;
            (asked.lookups.load(Ordering::Relaxed), asked.reads.load(Ordering::Relaxed))
        };
        let before = asked(&members);
        for _ in 0..GETS {
            get(&mut client, "a", 0, 0);
            assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
        }
        let after = asked(&members);
        let lookups = matches!(over, Over::Messages(_));
        let expected = if lookups { (GETS, 0) } else { (0, 3 * GETS) };
        assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{over:?}");
        // Too long for a message: the record is read, as over the other fabrics.
        let large = vec![7; 5000];
        members.put("large", &large);
        get(&mut client, "large", 3, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(3, 3, &large));
        get(&mut client, "nobody", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(0, 3, b""));
        let last = asked(&members);
        let expected = if lookups { (2, 1) } else { (0, 5) };
        assert_eq!((last.0 - after.0, last.1 - after.1), expected, "{over:?}");
    }
}

#[test]
fn a_get_off_the_primary_waits_for_its_least_record() {
    over_each(|mut harness, mut members| {
        let (mut client, mut other) = (harness.client(), harness.client());
        get(&mut client, "a", 3, 0);
        get(&mut other, "a", 2, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut other), value(1, 2, b"one"));
        hears_nothing(&mut harness, &mut members, &mut client);
        members.put("c", b"three");
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 3, b"one"));
    });
}

#[test]
fn a_fresh_get_off_the_primary_asks_for_a_position() {
    over_each(|mut harness, mut members| {
        let (mut client, mut other) = (harness.client(), harness.client());
        get(&mut client, "a", 0, GET_FRESH);
        get(&mut other, "a", 0, GET_FRESH);
        until(&mut harness, &mut members, |members| (!members.asked.is_empty()).then_some(()));
        hears_nothing(&mut harness, &mut members, &mut client);
        members.put_unpublished("a", b"two");
        members.position = Some(3);
        hears_nothing(&mut harness, &mut members, &mut client);
        members.published = 3;
        for client in [&mut client, &mut other] {
            assert_eq!(hear(&mut harness, &mut members, client), value(3, 3, b"two"));
        }
    });
}

#[test]
fn a_view_is_stale_until_the_board_is_seen_to_move() {
    let (mut harness, mut members) = standby(Over::Shm);
    let mut client = harness.client();
    get(&mut client, "a", 0, 0);
    assert!(heard_with(&mut harness, &mut members, &mut client).ends_with("stale: true }"));
    let give_up = Instant::now() + PATIENCE;
    let mut is_fresh = || {
        get(&mut client, "a", 0, 0);
        heard_with(&mut harness, &mut members, &mut client) == value(1, 2, b"one")
    };
    while !is_fresh() {
        assert!(Instant::now() < give_up, "it stays stale");
    }
}

#[test]
fn a_torn_mirror_is_left_for_another_members() {
    over_each(|mut harness, mut members| {
        let mut client = harness.client();
        get(&mut client, "a", 0, 0);
        hear(&mut harness, &mut members, &mut client);
        let first = members.visited[0];
        members.tear(first);
        get(&mut client, "a", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
        assert_eq!(members.visited.len(), 2);
        // Nobody has it: unavailable at once, and not only when its time is over.
        (0..3).for_each(|member| members.tear(member));
        get(&mut client, "a", 0, GET_OLDER);
        let heard = hear(&mut harness, &mut members, &mut client);
        assert!(heard.contains("Unavailable") && heard.contains("no member has a sound copy"), "{heard}");
    });
}

#[test]
fn a_record_that_is_in_no_memory_is_fetched() {
    over_each(|mut harness, mut members| {
        members.has_memory = false;
        let mut client = harness.client();
        get(&mut client, "a", 0, 0);
        // It is the last segment, so it may be shared any moment, until the log has gone on.
        hears_nothing(&mut harness, &mut members, &mut client);
        members.end = 2;
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
        assert_eq!(members.fetches, 1);
    });
}

#[test]
fn when_a_member_dies_the_next_one_answers() {
    over_each(|mut harness, mut members| {
        let mut client = harness.client();
        get(&mut client, "a", 0, 0);
        hear(&mut harness, &mut members, &mut client);
        let first = members.visited[0];
        get(&mut client, "a", 3, 0);
        hears_nothing(&mut harness, &mut members, &mut client);
        members.kill(&harness, first);
        members.put("b", b"two");
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 3, b"one"));
        assert!(members.visited[1..].iter().all(|member| *member != first), "{:?}", members.visited);
    });
}

#[test]
fn without_mirrors_gets_wait_and_their_clients_may_go() {
    let (mut harness, mut members) = standby(Over::Shm);
    members.have_mirrors = false;
    let (mut gone, mut client) = (harness.client(), harness.client());
    (0..UNANSWERED_MAX).for_each(|_| get(&mut gone, "a", 0, 0));
    get(&mut client, "a", 0, 0);
    hears_nothing(&mut harness, &mut members, &mut client);
    drop(gone);
    hears_nothing(&mut harness, &mut members, &mut client);
    members.have_mirrors = true;
    assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
}

#[test]
fn more_gets_than_may_wait_are_taken_later() {
    let (mut harness, mut members) = standby(Over::Shm);
    members.have_mirrors = false;
    let mut clients: Vec<Client> = (0..=GETS_MAX / UNANSWERED_MAX + 1).map(|_| harness.client()).collect();
    for client in &mut clients {
        (0..UNANSWERED_MAX + 1).for_each(|_| get(client, "a", 0, 0));
    }
    hears_nothing(&mut harness, &mut members, &mut clients[0]);
    members.have_mirrors = true;
    for client in &mut clients {
        for _ in 0..UNANSWERED_MAX + 1 {
            assert_eq!(hear(&mut harness, &mut members, client), value(1, 2, b"one"));
        }
    }
}

#[test]
fn a_client_that_reads_no_answers_holds_up_itself_alone() {
    let (mut harness, mut members) = standby(Over::Shm);
    let large = vec![7; 3000];
    members.put("large", &large);
    let (mut deaf, mut client) = (harness.client(), harness.client());
    let wanted = Request::Get { key: Key::new(b"large").unwrap(), least: 0, flags: 0 };
    deaf.send(&vec![wanted; 500]);
    for _ in 0..100 {
        get(&mut client, "a", 0, 0);
        assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 3, b"one"));
    }
    (0..500).for_each(|_| assert_eq!(hear(&mut harness, &mut members, &mut deaf), value(3, 3, &large)));
}

#[test]
fn gets_that_wait_are_answered_by_the_new_primary() {
    let (mut harness, mut members) = standby(Over::Shm);
    members.have_mirrors = false;
    let mut client = harness.client();
    get(&mut client, "a", 1, 0);
    hears_nothing(&mut harness, &mut members, &mut client);
    harness.lead(3);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary"));
    apply(&mut client, &[put("a", b"new")]);
    let mut heard = [harness.hear(&mut client), harness.hear(&mut client)];
    heard.sort();
    assert_eq!(heard, [ack(1), value(1, 1, b"new")]);
}

#[test]
fn what_was_shown_counts_in_every_role() {
    let (mut harness, mut members) = standby(Over::Shm);
    let mut client = harness.client();
    get(&mut client, "a", 0, 0);
    assert_eq!(hear(&mut harness, &mut members, &mut client), value(1, 2, b"one"));
    // Here a primary with less than that is one whose log is still to be acknowledged again.
    harness.lead(3);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary"));
    get(&mut client, "a", 0, 0);
    harness.settle();
    assert_eq!(client.heard(), None, "nothing older than LSN 2");
    apply(&mut client, &[put("a", b"x"), put("b", b"x"), put("c", b"x")]);
    let mut heard = [harness.hear(&mut client), harness.hear(&mut client)];
    heard.sort();
    assert_eq!(heard, [ack(3), value(1, 3, b"x")]);
    // And the other way round, on a connection that appends nothing any more.
    harness.stand_by(4);
    assert!(harness.hear(&mut client).starts_with("Role { role: Standby"));
    get(&mut client, "c", 0, 0);
    hears_nothing(&mut harness, &mut members, &mut client);
    members.put("c", b"three");
    assert_eq!(hear(&mut harness, &mut members, &mut client), value(3, 3, b"three"));
}

#[test]
fn what_was_shown_counts_after_a_read_too() {
    let (mut harness, mut members) = standby(Over::Shm);
    members.put_unpublished("a", b"two");
    let mut client = harness.client();
    get(&mut client, "a", 0, 0);
    assert_eq!(hear(&mut harness, &mut members, &mut client), value(3, 3, b"two"));
    client.send(&[Request::Read { from: 1, limit: 0, flags: READ_ANYWHERE, history: 0 }]);
    let ClientRequest::Read(detached, _) = harness.until("the read", LoopHarness::handed_over) else { unreachable!() };
    harness.command(Command::Adopt(detached));
    get(&mut client, "b", 0, 0);
    hears_nothing(&mut harness, &mut members, &mut client);
    members.published = 3;
    assert_eq!(hear(&mut harness, &mut members, &mut client), value(2, 3, b""));
}

#[test]
fn a_term_that_is_over_shows_nothing_after_a_later_epoch() {
    let (mut harness, mut members) = standby(Over::Shm);
    members.epoch = 5;
    members.tell_configuration(&harness);
    let mut client = harness.client();
    get(&mut client, "a", 0, 0);
    hear(&mut harness, &mut members, &mut client);
    harness.lead(4);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary"));
    get(&mut client, "a", 0, 0);
    let heard = harness.hear(&mut client);
    assert!(heard.contains("NotPrimary") && heard.contains("another sidecar is primary by now"), "{heard}");
}

#[test]
fn a_connection_that_was_shown_what_is_lost_is_told_so() {
    let (mut harness, mut members) = standby(Over::Shm);
    let (mut client, mut fresh) = (harness.client(), harness.client());
    get(&mut client, "a", 0, 0);
    hear(&mut harness, &mut members, &mut client);
    get(&mut client, "a", 9, 0);
    get(&mut fresh, "a", 9, 0);
    hears_nothing(&mut harness, &mut members, &mut client);
    members.epoch = 3;
    let mut config = members.configuration();
    harness.cuts = vec![Cut { epoch: Epoch(3), last: Lsn(1), ordered: None }];
    config.cuts.clone_from(&harness.cuts);
    harness.command(Command::Getter(Brought::Config(Box::new(config))));
    for _ in 0..2 {
        let heard = hear(&mut harness, &mut members, &mut client);
        assert!(heard.contains("BeyondEnd, fatal: false") && heard.contains("connect again"), "{heard}");
        get(&mut client, "a", 0, 0);
    }
    members.published = 9;
    assert_eq!(hear(&mut harness, &mut members, &mut fresh), value(1, 9, b"one"));
    // The same at the primary.
    hear(&mut harness, &mut members, &mut client);
    harness.lead(4);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary"));
    get(&mut client, "a", 0, 0);
    assert!(harness.hear(&mut client).contains("BeyondEnd"));
    let mut new = harness.client();
    get(&mut new, "a", 0, 0);
    assert_eq!(harness.hear(&mut new), value(0, 0, b""));
}
