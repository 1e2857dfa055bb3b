//! Screens by example, drawn on ratatui's own backend. `UPDATE_GOLDENFILES=1` writes the files in `tests/screens`; read them before
//! you keep them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ratatui_core::backend::TestBackend;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use tailwind_report::Positions;
use tailwind_report::readiness::{Waiting, WaitsFor};
use tailwind_report::report::Report;
use tailwind_report::rows::Tone;
use tailwind_report::sidecar::{
    AppendsReport, FollowReport, MemberReport, MemberState, PrimaryReport, ReaderReport, SegmentsReport, SidecarReport,
    StandbyReport, Takeover,
};
use tailwind_report::verdict::verdict;
use tailwind_screen::draw::{Look, draw};
use tailwind_screen::model::{Answer, Model, Progress, Round};

fn text(value: &str) -> String {
    value.to_owned()
}

fn member(name: &str, state: MemberState) -> MemberReport {
    let in_set = state == MemberState::InSet;
    let is_gone = matches!(state, MemberState::Lost | MemberState::Unreachable);
    let newcomer = state == MemberState::CatchingUp;
    MemberReport {
        name: text(name),
        address: Some(format!("10.0.0.{}:7420", name.len())),
        state,
        in_set,
        since_ms: is_gone.then_some(12_345),
        why: is_gone.then(|| text("connection refused")),
        behind_bytes: if newcomer { Some(64 << 20) } else { in_set.then_some(0) },
        segments_missing: newcomer.then_some(8),
        ..MemberReport::default()
    }
}

fn judged(name: &str, content: SidecarReport) -> Report<SidecarReport> {
    let verdict = verdict(&content);
    Report::new("db", name, SidecarReport { verdict, ..content })
}

/// A primary with these members, which has taken so many records.
fn primary(members: Vec<MemberReport>, records: u64) -> SidecarReport {
    SidecarReport {
        role: text("primary"),
        epoch: 3,
        log: Some(text("0000000000000000000000000000abcd")),
        segment_bytes: 8 << 20,
        members_wanted: 3,
        min_in_sync: 2,
        members,
        standbys: vec![StandbyReport {
            name: text("second"),
            takeover: Some(Takeover { ready: true, why_not: None }),
            app: true,
            ..StandbyReport::default()
        }],
        readers: vec![ReaderReport {
            name: text("feed-0"),
            follow: Some(FollowReport { from: text("b1"), lsn: 999, lag_ms: Some(75), stale: false }),
            ..ReaderReport::default()
        }],
        positions: Some(Positions { first: 1, acked: records }),
        segments: Some(SegmentsReport { closed: 14, open: 2, memory_bytes: 16 << 20 }),
        appends: Some(AppendsReport { records, p99_us: Some(64), ..AppendsReport::default() }),
        ..SidecarReport::default()
    }
}

fn standby() -> SidecarReport {
    SidecarReport {
        role: text("standby"),
        epoch: 3,
        log: Some(text("0000000000000000000000000000abcd")),
        primary: Some(PrimaryReport { name: text("first"), ..PrimaryReport::default() }),
        takeover: Some(Takeover { ready: true, why_not: None }),
        members: vec![member("b0", MemberState::InSet), member("b1", MemberState::InSet)],
        ..SidecarReport::default()
    }
}

fn round(first: Answer, second: Answer) -> Round {
    Round { answers: vec![(text("/run/tailwind/first.sock"), first), (text("/run/tailwind/second.sock"), second)] }
}

fn whole() -> Vec<MemberReport> {
    ["b0", "b1", "b2"].map(|name| member(name, MemberState::InSet)).to_vec()
}

/// A group that appends for a while, and then loses a member that a spare replaces.
fn story() -> Model {
    let mut model = Model::default();
    let mut records = 0;
    for n in 0..60_u64 {
        records += 10_000 * (1 + n % 7);
        let members = match n {
            0..40 => [whole(), vec![member("b3", MemberState::Spare)]].concat(),
            40..50 => {
                let states = [MemberState::InSet, MemberState::InSet, MemberState::Lost, MemberState::CatchingUp];
                (0..4).map(|n| member(&format!("b{n}"), states[n])).collect()
            }
            _ => {
                let states = [MemberState::InSet, MemberState::InSet, MemberState::Lost, MemberState::InSet];
                (0..4).map(|n| member(&format!("b{n}"), states[n])).collect()
            }
        };
        let first = judged("first", primary(members, records));
        model.take(Duration::from_millis(500 * n), round(Ok(first), Ok(judged("second", standby()))));
    }
    model
}

/// While the spare is being filled.
fn degraded() -> Model {
    let mut model = Model::default();
    let take = |model: &mut Model, at, states: [MemberState; 4]| {
        let members = (0..4).map(|n| member(&format!("b{n}"), states[n])).collect();
        let first = judged("first", primary(members, 5000 * at));
        model.take(Duration::from_secs(at), round(Ok(first), Ok(judged("second", standby()))));
    };
    use MemberState::{CatchingUp, InSet, Lost, Spare};
    take(&mut model, 1, [InSet, InSet, InSet, Spare]);
    take(&mut model, 2, [InSet, InSet, Lost, Spare]);
    take(&mut model, 3, [InSet, InSet, Lost, CatchingUp]);
    model
}

/// Nobody leads: the standby waits for members.
fn waiting() -> Model {
    let mut model = Model::default();
    model
        .take(Duration::from_secs(1), round(Ok(judged("first", primary(whole(), 7))), Ok(judged("second", standby()))));
    let waits = Waiting {
        what: WaitsFor::Members,
        why: text("1 of the last set's members hold their log, 2 needed; missing: b1"),
    };
    let waits =
        SidecarReport { role: text("recovering"), waiting: Some(waits), primary: None, takeover: None, ..standby() };
    let gone = Err(text("it has ended"));
    model.take(Duration::from_secs(2), round(gone, Ok(judged("second", waits))));
    model
}

fn nobody() -> Model {
    let mut model = Model::default();
    let gone = || Err(text("its socket is not there"));
    model.take(Duration::from_secs(1), round(gone(), gone()));
    model
}

fn drawn(model: &Model, colour: bool, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, Look { colour }, frame)).unwrap();
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let mut out = String::new();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[test]
fn screens_match_their_files() {
    let with_job = {
        let mut model = degraded();
        model.progress = Some(Progress { what: text("append"), done: 430_000, total: 1_020_000 });
        model.event(Duration::from_secs(4), text("killing the primary (SIGKILL) after record 430,000"), Tone::Passing);
        model
    };
    let wrong: Vec<String> = [
        ("a_spare_has_replaced_a_member", story(), 110, 34),
        ("eighty_columns", degraded(), 80, 24),
        ("a_job_beside", with_job, 100, 30),
        ("nobody_leads", waiting(), 90, 26),
        ("nobody_answers", nobody(), 80, 10),
        ("narrow", degraded(), 30, 12),
        ("low", degraded(), 80, 9),
        ("tiny", degraded(), 5, 2),
        ("nothing_known_yet", Model::default(), 60, 6),
    ]
    .into_iter()
    .filter_map(|(name, model, width, height)| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/screens/{name}.txt"));
        let found = lines(&drawn(&model, false, width, height));
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            fs::write(&path, &found).unwrap();
        }
        (fs::read_to_string(&path).unwrap_or_default() != found).then(|| format!("{name}:\n{found}"))
    })
    .collect();
    assert!(wrong.is_empty(), "other screens than in the files; see the head of this file\n\n{}", wrong.join("\n"));
}

#[test]
fn every_size_can_be_drawn() {
    for model in [Model::default(), story(), degraded(), waiting(), nobody()] {
        for width in [1, 2, 20, 39, 40, 41, 79, 200] {
            for height in [1, 2, 5, 9, 14, 20, 24, 80] {
                let terminal = drawn(&model, true, width, height);
                assert!(terminal.backend().buffer().content.len() == usize::from(width) * usize::from(height));
            }
        }
    }
}

#[test]
fn without_colours_there_are_none() {
    let colours = |colour| {
        let terminal = drawn(&degraded(), colour, 100, 30);
        let cells = terminal.backend().buffer().content.clone();
        cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 100);
}
