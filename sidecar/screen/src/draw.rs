//! Draws a [`Model`] on a frame: the verdict, who takes part, the log, rates and times, and what happened.
//!
//! Called by [`show`](crate::show), and by tests with ratatui's own backend. What has no room is left out, the last first: the
//! verdict is there on the smallest terminal.

use std::time::Duration;

use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::block::Block;
use ratatui_widgets::borders::Borders;
use ratatui_widgets::paragraph::{Paragraph, Wrap};
use ratatui_widgets::sparkline::{RenderDirection, Sparkline};
use ratatui_widgets::table::{Row as TableRow, Table};
use tailwind_report::report::Report;
use tailwind_report::rows::{Row, Tone, bytes, count, micros, rows};
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::verdict::{VerdictState, ago};

use crate::model::{Event, Model, Progress};

/// Rows of a sparkline.
const SPARK: u16 = 3;
/// Rows of what happened, at least.
const EVENTS_MIN: u16 = 4;
/// A terminal with fewer columns gets the verdict alone.
const WIDTH_MIN: u16 = 40;

/// The style of the drawing.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// With colours; without them the same is bold or dim.
    pub colour: bool,
}

impl Look {
    fn tone(self, tone: Tone) -> Style {
        match (self.colour, tone) {
            (true, Tone::Well) => Style::new().fg(Color::Green),
            (true, Tone::Passing) => Style::new().fg(Color::Yellow),
            (true, Tone::Ill) => Style::new().fg(Color::Red),
            (false, Tone::Well) => Style::new(),
            (false, Tone::Passing) => Style::new().add_modifier(Modifier::DIM),
            (false, Tone::Ill) => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    fn verdict(self, state: VerdictState) -> Style {
        let tone = match state {
            VerdictState::Ok => Tone::Well,
            VerdictState::Degraded => Tone::Passing,
            VerdictState::Waiting => Tone::Ill,
        };
        let style = if self.colour { self.tone(tone) } else { Style::new() };
        style.add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
}

/// Draws the whole screen.
pub fn draw(model: &Model, look: Look, frame: &mut Frame<'_>) {
    let area = frame.area();
    let Some(best) = model.round.best() else { return draw_nobody(model, look, frame, area) };
    let verdict = verdict_lines(best, look);
    if area.width < WIDTH_MIN {
        frame.render_widget(Paragraph::new(verdict).wrap(Wrap { trim: true }), area);
        return;
    }
    let rows = everybody(model, best);
    let head = 1 + wrapped(&best.content.verdict.to_string(), area.width);
    let table = rows.len() as u16 + 3;
    let (log, sparks) = (3, SPARK + 2);
    // What has no room, from the least important on.
    let events_min = EVENTS_MIN + 2;
    let fits = |parts: &[u16]| parts.iter().sum::<u16>() <= area.height;
    let progress = u16::from(model.progress.is_some());
    let (log, sparks, events) = match () {
        () if fits(&[head, progress, table, log, sparks, events_min]) => (log, sparks, events_min),
        () if fits(&[head, progress, table, sparks, events_min]) => (0, sparks, events_min),
        () if fits(&[head, progress, table, events_min]) => (0, 0, events_min),
        () => (0, 0, 0),
    };
    let rest = if events > 0 { Constraint::Min(events) } else { Constraint::Length(0) };
    let table = if events > 0 { Constraint::Length(table) } else { Constraint::Min(0) };
    let lengths = [head, progress].map(Constraint::Length);
    let [top, job, who, of_log, of_time, what] =
        Layout::vertical([lengths[0], lengths[1], table, Constraint::Length(log), Constraint::Length(sparks), rest])
            .areas(area);
    frame.render_widget(Paragraph::new(verdict).wrap(Wrap { trim: false }), top);
    if let Some(progress) = &model.progress {
        frame.render_widget(progress_line(progress, job.width), job);
    }
    draw_table(&rows, look, frame, who);
    if log > 0 {
        draw_log(best, look, frame, of_log);
    }
    if sparks > 0 {
        draw_sparks(model, look, frame, of_time);
    }
    if events > 0 {
        draw_events(model, look, frame, what);
    }
}

fn draw_nobody(model: &Model, look: Look, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = vec![Line::from(Span::styled("no sidecar answers", look.verdict(VerdictState::Waiting)))];
    for (label, answer) in &model.round.answers {
        let why = answer.as_ref().err().map_or("not asked yet", String::as_str);
        lines.push(Line::from(format!("{label}: {why}")));
    }
    let height = (lines.len() as u16 + 1).min(area.height);
    let [top, rest] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), top);
    if area.width >= WIDTH_MIN && rest.height > EVENTS_MIN && !model.events.is_empty() {
        draw_events(model, look, frame, rest);
    }
}

/// Rows that a text takes at this width, about: words are not split.
fn wrapped(text: &str, width: u16) -> u16 {
    let (mut lines, mut column) = (1, 0);
    for word in text.split(' ').map(|word| word.chars().count()) {
        let needed = if column == 0 { word } else { column + 1 + word };
        (lines, column) = if needed <= usize::from(width) { (lines, needed) } else { (lines + 1, word) };
    }
    lines
}

fn verdict_lines(best: &Report<SidecarReport>, look: Look) -> Vec<Line<'static>> {
    let Report { group, name, content, .. } = best;
    let log = content.log.as_ref().map_or_else(String::new, |log| format!(", log {log}"));
    let seen = if content.is_primary() { "" } else { ", seen from a sidecar that does not lead" };
    let verdict = &content.verdict;
    vec![
        Line::from(vec![
            Span::styled(verdict.state.as_str(), look.verdict(verdict.state)),
            Span::raw(format!(" {}", verdict.text)),
        ]),
        Line::styled(
            format!("group {group}{log}; epoch {}, {name} is {}{seen}", content.epoch, content.role),
            look.faint(),
        ),
    ]
}

fn progress_line(Progress { what, done, total }: &Progress, width: u16) -> Line<'static> {
    let numbers = format!(" {} of {} ", count(*done), count(*total));
    let room = usize::from(width).saturating_sub(what.chars().count() + numbers.chars().count() + 1);
    let full = (room as u64 * (*done).min(*total)).checked_div(*total).unwrap_or(0) as usize;
    Line::from(format!("{what}{numbers}{}{}", "█".repeat(full), "░".repeat(room.saturating_sub(full))))
}

/// The sidecars that were asked, then what the best of them knows of others.
fn everybody(model: &Model, best: &Report<SidecarReport>) -> Vec<Row> {
    let asked = model.round.answers.iter().map(|(label, answer)| match answer {
        Err(why) => Row {
            name: label.rsplit('/').next().unwrap_or(label).to_owned(),
            part: "sidecar",
            state: format!("does not answer: {why}"),
            behind: String::new(),
            address: String::new(),
            tone: Tone::Ill,
        },
        Ok(report) => sidecar(report, best),
    });
    let mut all: Vec<Row> = asked.collect();
    for row in rows(&best.content) {
        if all.iter().all(|known| known.name != row.name) {
            all.push(row);
        }
    }
    all
}

fn sidecar(report: &Report<SidecarReport>, best: &Report<SidecarReport>) -> Row {
    let (content, same) = (&report.content, report.name == best.name);
    let (part, state, tone) = match content.role.as_str() {
        tailwind_report::ROLE_PRIMARY if same => ("primary", "leads".to_owned(), Tone::Well),
        tailwind_report::ROLE_PRIMARY => ("sidecar", "believes that it leads".to_owned(), Tone::Passing),
        _ => {
            let part = match content.role.as_str() {
                tailwind_report::ROLE_STANDBY => "standby",
                tailwind_report::ROLE_READER => "reader",
                _ => "candidate",
            };
            let tone = match content.verdict.state {
                VerdictState::Ok => Tone::Well,
                VerdictState::Degraded => Tone::Passing,
                VerdictState::Waiting => Tone::Ill,
            };
            (part, content.verdict.text.clone(), tone)
        }
    };
    let lag = content.follow.as_ref().and_then(|follow| follow.lag_ms);
    Row {
        name: report.name.clone(),
        part,
        state,
        behind: lag.map_or_else(String::new, |ms| format!("{ms} ms")),
        address: String::new(),
        tone,
    }
}

fn draw_table(all: &[Row], look: Look, frame: &mut Frame<'_>, area: Rect) {
    let widest = |cell: fn(&Row) -> &str| all.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0) as u16;
    let widths = [
        Constraint::Length(widest(|row| &row.name).clamp(4, 24)),
        Constraint::Length(9),
        Constraint::Fill(1),
        Constraint::Length(widest(|row| &row.behind).clamp(6, 12)),
        Constraint::Length(if area.width >= 100 { widest(|row| &row.address).min(30) } else { 0 }),
    ];
    let rows = all.iter().map(|row| {
        let cells = [row.name.as_str(), row.part, &row.state, &row.behind, &row.address].map(str::to_owned);
        TableRow::new(cells).style(look.tone(row.tone))
    });
    let header = TableRow::new(["NAME", "PART", "STATE", "BEHIND", "ADDRESS"]).style(look.faint());
    let table = Table::new(rows, widths).header(header).column_spacing(2).block(block("group"));
    frame.render_widget(table, area);
}

fn draw_log(best: &Report<SidecarReport>, look: Look, frame: &mut Frame<'_>, area: Rect) {
    let report = &best.content;
    let mut text = match &report.positions {
        None => "how far it is, only its primary knows".to_owned(),
        Some(at) if at.acked == 0 => "empty".to_owned(),
        Some(at) => format!("LSN {} to {}", count(at.first), count(at.acked)),
    };
    if let Some(synced) = report.synced.filter(|synced| *synced > 0) {
        text += &format!(", on disk everywhere up to {}", count(synced));
    }
    let mut spans = vec![Span::raw(text)];
    if let Some(segments) = &report.segments {
        let size = bytes(report.segment_bytes);
        let words = format!("  {} closed + {} open × {size} ", count(segments.closed), segments.open);
        let used: usize = spans.iter().map(|span| span.content.chars().count()).sum();
        let room = usize::from(area.width).saturating_sub(2 + used + words.chars().count() + segments.open as usize);
        spans.push(Span::styled(words, look.faint()));
        // Each mark is a closed segment, or as many as it takes to fit.
        let each = (segments.closed as usize).div_ceil(room.max(1)).max(1);
        spans.push(Span::raw("■".repeat((segments.closed as usize).div_ceil(each).min(room))));
        spans.push(Span::raw("□".repeat(segments.open as usize)));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)).block(block("log")), area);
}

fn draw_sparks(model: &Model, look: Look, frame: &mut Frame<'_>, area: Rect) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let style = if look.colour { Style::new().fg(Color::Cyan) } else { Style::new() };
    // The latest value is at the right, and the oldest that has room at the left.
    let spark = |values: Vec<Option<u64>>, title: String| {
        let spark = Sparkline::default().data(values).style(style).direction(RenderDirection::RightToLeft);
        spark.block(block(&title))
    };
    let rate = model.rates.back().copied().unwrap_or(0);
    let rates = model.rates.iter().rev().map(|rate| Some(*rate)).collect();
    frame.render_widget(spark(rates, format!("appends: {} records/s", count(rate))), left);
    let time = model.times.iter().rev().find_map(|time| *time).map_or_else(|| "-".to_owned(), micros);
    let times = model.times.iter().rev().copied().collect();
    frame.render_widget(spark(times, format!("time to an ack: p99 {time}")), right);
}

fn draw_events(model: &Model, look: Look, frame: &mut Frame<'_>, area: Rect) {
    let room = usize::from(area.height.saturating_sub(2));
    let line = |Event { at, text, tone }: &Event| {
        let at = format!("{:>9}  ", seconds(*at));
        Line::from(vec![Span::styled(at, look.faint()), Span::styled(text.clone(), look.tone(*tone))])
    };
    // The latest is at the bottom, as in a log.
    let shown = model.events.iter().skip(model.events.len().saturating_sub(room));
    let now = Line::from(format!(" {} since the start; q quits ", seconds(model.at))).right_aligned();
    let block = block("what happened").title_bottom(now);
    frame.render_widget(Paragraph::new(shown.map(line).collect::<Vec<_>>()).block(block), area);
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..600 => format!("{:.1} s", time.as_secs_f64()),
        _ => ago(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).replace(" ago", ""),
    }
}

fn block(title: &str) -> Block<'static> {
    Block::new().borders(Borders::ALL).title(format!(" {title} "))
}
