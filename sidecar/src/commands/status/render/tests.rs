//! The main situations, as people see them.

use tailwind_report::Positions;
use tailwind_report::readiness::{AppendsWait, AppendsWaitFor, Waiting, WaitsFor};
use tailwind_report::sidecar::{
    ClientsReport, FollowReport, Ladder, MemberReport, MemberState, PrimaryReport, ReaderReport, SegmentsReport,
    StandbyReport, Takeover,
};
use tailwind_report::table::{CleanerReport, CleanerState, MirrorReport, MirrorState, RebuildReport, TableReport};
use tailwind_report::verdict::verdict;

use super::*;

fn text(value: &str) -> String {
    value.to_owned()
}

fn rendered(name: &str, mut content: SidecarReport) -> String {
    content.verdict = verdict(&content);
    Rendered(&Report::new("db", name, content)).to_string()
}

fn member(name: &str, host: u8) -> MemberReport {
    MemberReport {
        name: text(name),
        address: Some(format!("10.0.0.{host}:7420")),
        in_set: true,
        completed: Some(text("4:700")),
        behind_bytes: Some(0),
        ..MemberReport::default()
    }
}

fn ready() -> Option<Takeover> {
    Some(Takeover { ready: true, why_not: None })
}

fn second() -> StandbyReport {
    StandbyReport { name: text("second"), takeover: ready(), app: true, ..StandbyReport::default() }
}

fn primary() -> SidecarReport {
    SidecarReport {
        role: text("primary"),
        epoch: 3,
        log: Some(text("0000000000000000000000000000abcd")),
        set_version: Some(7),
        primary: Some(PrimaryReport { name: text("first"), ..PrimaryReport::default() }),
        durability: text("memory"),
        fabric: text("tcp"),
        segment_bytes: 8 << 20,
        members_wanted: 3,
        min_in_sync: 2,
        members: vec![member("b0", 1), member("b1", 2), member("b2", 3)],
        standbys: vec![second()],
        positions: Some(Positions { first: 1, acked: 1_000_042 }),
        synced: Some(900_000),
        ladder: Some(Ladder {
            flushed: text("3:0"),
            acked: text("4:700"),
            completed: text("4:700"),
            posted: text("4:764"),
            appended: text("4:764"),
        }),
        segments: Some(SegmentsReport { closed: 120, open: 2, memory_bytes: 16 << 20 }),
        appends: Some(AppendsReport {
            records_per_second: 151_234.5,
            bytes_per_second: 15_000_000.0,
            pending: 812,
            p50_us: Some(16),
            p99_us: Some(64),
            p999_us: Some(32_768),
            ..AppendsReport::default()
        }),
        clients: ClientsReport { connected: 2, rings: 1, followers: 0, syncing: 0 },
        ..SidecarReport::default()
    }
}

#[test]
fn a_primary_that_is_well() {
    let expected = "\
OK 3 of 3 copies, standby ready

group      db, log 0000000000000000000000000000abcd
sidecar    first: primary, epoch 3
promise    memory durability over tcp; 3 copies wanted, 2 needed; member set version 7
log        LSN 1 to 1000042 can be read; on disk at every member up to LSN 900000
segments   120 closed, 2 open, of 8 MiB; 16.0 MiB of memory here
appends    151,234 records/s, 14.3 MiB/s; acknowledged within p50 16 µs, p99 64 µs, p99.9 32 ms; 812 wait for their ack
clients    1; through shared memory: 1
positions  flushed 3:0 ≤ acked 4:700 ≤ completed 4:700 ≤ posted 4:764 ≤ appended 4:764

NAME    PART     STATE               BEHIND  ADDRESS
b0      member   in the set          0 B     10.0.0.1:7420
b1      member   in the set          0 B     10.0.0.2:7420
b2      member   in the set          0 B     10.0.0.3:7420
second  standby  ready to take over
";
    assert_eq!(rendered("first", primary()), expected);
}

#[test]
fn what_is_missing_has_rows() {
    let mut report = primary();
    report.members.pop();
    report.members[1].damaged = 2;
    report.members.push(MemberReport {
        in_set: false,
        state: MemberState::CatchingUp,
        segments_missing: Some(80),
        behind_bytes: Some(640 << 20),
        ..member("b3", 4)
    });
    let gone = |name: &str, host: u8, state: MemberState| MemberReport {
        in_set: false,
        state,
        since_ms: Some(12_345),
        why: Some(text("connection refused")),
        completed: None,
        behind_bytes: None,
        ..member(name, host)
    };
    report.members.push(gone("b2", 3, MemberState::Lost));
    report.members.push(gone("b4", 5, MemberState::Unreachable));
    report.members.push(MemberReport {
        state: MemberState::Spare,
        since_ms: None,
        why: None,
        ..gone("b5", 6, MemberState::Spare)
    });
    report.standbys[0].silent = true;
    report.standbys[0].heard_ms_ago = 5000;
    report.readers.push(ReaderReport {
        name: text("feed-0"),
        follow: Some(FollowReport { from: text("b1"), lsn: 999, lag_ms: Some(75), stale: false }),
        ..ReaderReport::default()
    });
    report.failover_ms = Some(41);
    let found = rendered("first", report);
    let (head, table) = found.split_once("\n\nNAME").unwrap();
    assert!(
        head.starts_with(
            "DEGRADED 2 of 3 copies (b2 lost 12 s ago: connection refused; b3 catching up, 80 segments to copy; b4 \
             unreachable for 12 s: connection refused; 1 more), b1 is being sent 2 segments again that are gone or corrupt \
             there, no standby (second was last heard 5 s ago)\n"
        ),
        "{head}"
    );
    assert!(head.contains("\nsidecar    first: primary, epoch 3, took over within 41 ms\n"), "{head}");
    let expected = "    PART      STATE                                            BEHIND      ADDRESS
b0      member    in the set                                       0 B         10.0.0.1:7420
b1      member    in the set; 2 corrupt segments                   0 B         10.0.0.2:7420
b3      newcomer  catching up: 40 of 120 segments                  640.0 MiB  10.0.0.4:7420
b2      backup    lost 12 s ago: connection refused                            10.0.0.3:7420
b4      backup    unreachable for 12 s: connection refused                     10.0.0.5:7420
b5      backup    spare                                                        10.0.0.6:7420
second  standby   silent: last heard 5 s ago
feed-0  reader    at LSN 999, reading from b1, 75 ms behind at most  75 ms
";
    let squeezed = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(squeezed(table), squeezed(expected), "{table}");
}

#[test]
fn a_primary_whose_appends_wait() {
    let mut report = primary();
    report.members[0].why = Some(text("its flush folder is full (No space left on device)"));
    let why = text("b0: its flush folder is full (No space left on device)");
    report.appends_wait = Some(AppendsWait { what: AppendsWaitFor::Room, why });
    let found = rendered("first", report);
    assert!(
        found.starts_with("WAITING appends wait: b0: its flush folder is full (No space left on device)\n\n"),
        "{found}"
    );
    assert!(found.contains("\nb0      member   lends no buffer: its flush folder is full"), "{found}");
}

#[test]
fn an_idle_primary_has_no_figures() {
    let report = SidecarReport {
        positions: Some(Positions::default()),
        synced: Some(0),
        appends: Some(AppendsReport::default()),
        ..primary()
    };
    let found = rendered("first", report);
    assert!(found.contains("\nlog        empty\n") && found.contains("\nappends    none now\n"), "{found}");
}

#[test]
fn a_table_says_how_full_it_is_and_what_cleans_it() {
    let cleaner = |state, segment| Some(CleanerReport { state, segment });
    let table = TableReport {
        keys: Some(12_345),
        keys_max: 2_097_152,
        live_bytes: Some(5 << 20),
        live_bytes_max: 1 << 30,
        log_bytes: Some(96 << 20),
        memory_bytes: 2 << 30,
        cleaner: cleaner(CleanerState::Moving, Some(7)),
        rebuild: None,
        warm: None,
        mirrors: vec![],
    };
    let line = |table: TableReport| {
        let found = rendered("first", SidecarReport { table: Some(table), ..primary() });
        found.lines().find(|line| line.starts_with("table ")).unwrap_or(&found).to_owned()
    };
    let figures = "table      12,345 of 2,097,152 keys, 5.0 MiB of 1.0 GiB live; 96.0 MiB of 2.0 GiB of log";
    assert_eq!(line(table.clone()), format!("{figures}; cleaning segment 7"));
    let stopped = TableReport { cleaner: cleaner(CleanerState::NotCleaned, Some(7)), ..table.clone() };
    assert_eq!(line(stopped), format!("{figures}; NOT CLEANED: segment 7 has a record that is not keyed"));
    let elsewhere = TableReport { keys: None, live_bytes: None, log_bytes: None, cleaner: None, ..table.clone() };
    assert_eq!(line(elsewhere.clone()), "table      of up to 2,097,152 keys, in 2.0 GiB of log");
    let warm = TableReport { warm: Some(41_234), ..elsewhere.clone() };
    assert_eq!(line(warm), "table      of up to 2,097,152 keys, in 2.0 GiB of log; index warm up to LSN 41234");
    let rebuild = Some(RebuildReport { folded: 12, segments: 1300 });
    let rebuilt = TableReport { rebuild, ..elsewhere };
    assert_eq!(line(rebuilt), "table      rebuilding its index: 12 of 1,300 segments");
}

#[test]
fn mirrors_are_named_once_there_is_one() {
    let mirror = |name: &str, state, why: Option<&str>| MirrorReport {
        member: text(name),
        state,
        why: why.map(str::to_owned),
        ..MirrorReport::default()
    };
    let line = |mirrors| {
        let table = Some(TableReport { mirrors, ..TableReport::default() });
        let found = rendered("first", SidecarReport { table, ..primary() });
        found.lines().find(|line| line.starts_with("mirrors ")).map(str::to_owned)
    };
    let none = mirror("b1", MirrorState::None, Some("it lends 0 parts of 3 (--mirror)"));
    assert_eq!(line(vec![none.clone()]), None);
    let found = line(vec![mirror("b0", MirrorState::Live, None), none]);
    assert_eq!(found.as_deref(), Some("mirrors    b0 live; b1 none (it lends 0 parts of 3 (--mirror))"));
}

#[test]
fn a_standby_says_whether_it_could_take_over() {
    let named = |name: &str, host: u8| MemberReport { completed: None, behind_bytes: None, ..member(name, host) };
    let mut report = SidecarReport {
        role: text("standby"),
        primary: Some(PrimaryReport {
            name: text("first"),
            address: Some(text("10.0.1.1:7410")),
            heard_ms_ago: Some(400),
        }),
        takeover: ready(),
        members: vec![named("b0", 1), named("b1", 2)],
        standbys: vec![],
        positions: None,
        ladder: None,
        segments: None,
        appends: None,
        ..primary()
    };
    let expected = "\
OK standby of first, could take over

group      db, log 0000000000000000000000000000abcd
sidecar    second: standby, epoch 3
primary    first at 10.0.1.1:7410, answered just now

NAME  PART    STATE       ADDRESS
b0    member  in the set  10.0.0.1:7420
b1    member  in the set  10.0.0.2:7420
";
    assert_eq!(rendered("second", report.clone()), expected);
    let why_not = Some(text("1 of 2 members answers, 2 needed (b1: connection refused)"));
    report.takeover = Some(Takeover { ready: false, why_not });
    report.members[1].state = MemberState::Unreachable;
    (report.members[1].since_ms, report.members[1].why) = (Some(300_000), Some(text("connection refused")));
    let found = rendered("second", report);
    let first =
        "DEGRADED standby of first, could not take over: 1 of 2 members answers, 2 needed (b1: connection refused)\n";
    assert!(found.starts_with(first), "{found}");
    assert!(found.contains("\nb1    member  unreachable for 5 min: connection refused  10.0.0.2:7420\n"), "{found}");
}

#[test]
fn a_candidate_shows_what_it_waits_for() {
    let waiting = Waiting { what: WaitsFor::Members, why: text("1 of 2 members answers; missing: b1") };
    let report =
        SidecarReport { role: text("recovering"), epoch: 4, waiting: Some(waiting), ..SidecarReport::default() };
    let expected = "\
WAITING no primary: 1 of 2 members answers; missing: b1

group      db; no log is known yet
sidecar    db-0: recovering, epoch 4
";
    assert_eq!(rendered("db-0", report), expected);
}

#[test]
fn a_reader_shows_how_far_it_follows() {
    let reader = |follow: FollowReport| SidecarReport {
        role: text("reader"),
        primary: Some(PrimaryReport { name: text("first"), ..PrimaryReport::default() }),
        clients: ClientsReport { followers: 2, ..ClientsReport::default() },
        follow: Some(follow),
        ..SidecarReport::default()
    };
    let current = rendered("feed", reader(FollowReport { from: text("b1"), lsn: 42, lag_ms: Some(75), stale: false }));
    assert!(current.starts_with("OK reader of first's log, 75 ms behind at most\n"), "{current}");
    assert!(current.contains("\nprimary    first, has not answered this sidecar yet\n"), "{current}");
    let line = "\nfollowers  2; the one furthest behind is at LSN 42, reading from b1, 75 ms behind at most\n";
    assert!(current.contains(line), "{current}");
    let lost = rendered("feed", reader(FollowReport { lsn: 42, stale: true, ..FollowReport::default() }));
    let line = "at LSN 42, looking for a backup to read from, how far behind is not known: stale\n";
    assert!(lost.starts_with("DEGRADED reader of first's log, stale: ") && lost.contains(line), "{lost}");
}
