//! Draws plots as SVG.

use std::fmt::Write;

use super::{Axis, Line, Plot, Point, Scale, Stroke};
use crate::statistics::Summary;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 440.0;
/// Edges of the area of the lines.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 230.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = HEIGHT - 56.0;
/// Between the baselines of two names, and what a letter of them takes at most.
const LINE_HEIGHT: f64 = 17.0;
const LETTER: f64 = 7.6;

/// The plot as SVG.
pub(crate) fn draw(plot: &Plot) -> String {
    let area = Area::of(plot);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"14\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
    );
    text(&mut out, (16.0, 26.0), "start", "#222", &escape(plot.title));
    text(&mut out, (16.0, 48.0), "start", "#666", &escape(plot.y.title));
    axes(&mut out, plot, &area);
    for line in &plot.lines {
        band(&mut out, line, &area);
    }
    for line in &plot.lines {
        stroke(&mut out, line, &area);
    }
    for (line, place) in plot.lines.iter().zip(names(&plot.lines, &area)) {
        // A rim of white, where it lies on another line.
        out.push_str("<g paint-order=\"stroke\" stroke=\"white\" stroke-width=\"4\">");
        text(&mut out, place, "start", line.system.color(), &escape(&line.name()));
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

impl Line {
    pub(crate) fn name(&self) -> String {
        match self.part {
            None => self.system.name().to_owned(),
            Some((part, _)) => format!("{}: {part}", self.system.name()),
        }
    }
}

/// Where values lie in the picture.
struct Area {
    x: Side,
    y: Side,
}

/// One axis, as a range of places and the pixels at its ends.
struct Side {
    scale: Scale,
    low: f64,
    high: f64,
    pixels: (f64, f64),
}

impl Area {
    fn of(plot: &Plot) -> Area {
        let points = || plot.lines.iter().flat_map(|line| &line.points);
        Area {
            x: Side::new(plot.x, points().map(|point| point.x), (LEFT, RIGHT)),
            y: Side::new(plot.y, points().flat_map(|point| [point.y.min, point.y.max]), (BOTTOM, TOP)),
        }
    }

    fn place(&self, point: &Point, y: f64) -> (f64, f64) {
        (self.x.pixel(point.x), self.y.pixel(y))
    }
}

impl Side {
    /// The part of the axis that these values need: never empty.
    fn new(axis: Axis, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Side {
        let scale = axis.scale;
        let (low, high) = match scale {
            Scale::Named(names) => (-0.1, names.len().max(2) as f64 - 0.9),
            Scale::Logarithmic => {
                let places = Summary::of(values.filter(|value| *value > 0.0).map(f64::log10));
                let Summary { min, max, .. } = places.unwrap_or(Summary { median: 0.0, min: 0.0, max: 1.0 });
                let room = ((max - min) * 0.04).max(0.05);
                (min - room, max + room)
            }
        };
        Side { scale, low, high, pixels }
    }

    fn pixel(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Named(_) => value,
            // What has no logarithm lies below everything.
            Scale::Logarithmic if value > 0.0 => value.log10(),
            Scale::Logarithmic => self.low,
        };
        let share = (place.max(self.low) - self.low) / (self.high - self.low);
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    /// Values that are marked, with their names.
    fn marks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Named(names) => names.iter().enumerate().map(|(n, name)| (n as f64, (*name).to_owned())).collect(),
            Scale::Logarithmic => {
                // 1, 2 and 5 of each power of ten, or the powers alone where those would be many.
                let digits: &[f64] = if self.high - self.low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let powers = self.low.floor() as i32..=self.high.ceil() as i32;
                let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
                all.filter(|mark| (self.low..=self.high).contains(&mark.log10())).map(|m| (m, short(m))).collect()
            }
        }
    }
}

fn axes(out: &mut String, plot: &Plot, area: &Area) {
    for (value, name) in area.y.marks() {
        let y = area.y.pixel(value);
        segment(out, (LEFT, y), (RIGHT, y), "#e3e3e3");
        text(out, (LEFT - 8.0, y + 5.0), "end", "#444", &name);
    }
    for (value, name) in area.x.marks() {
        let x = area.x.pixel(value);
        segment(out, (x, BOTTOM), (x, BOTTOM + 5.0), "#888");
        text(out, (x, BOTTOM + 22.0), "middle", "#444", &name);
    }
    segment(out, (LEFT, BOTTOM), (RIGHT, BOTTOM), "#888");
    text(out, (f64::midpoint(LEFT, RIGHT), HEIGHT - 12.0), "middle", "#666", &escape(plot.x.title));
}

/// Draws a band from the least to the greatest value of each point.
fn band(out: &mut String, line: &Line, area: &Area) {
    let color = line.system.color();
    if let [point] = line.points[..] {
        segment(out, area.place(&point, point.y.min), area.place(&point, point.y.max), color);
        return;
    }
    let above = line.points.iter().map(|point| area.place(point, point.y.max));
    let below = line.points.iter().rev().map(|point| area.place(point, point.y.min));
    let corners = pairs(above.chain(below));
    let _ = writeln!(out, "<polygon points=\"{corners}\" fill=\"{color}\" fill-opacity=\"0.15\"/>");
}

fn stroke(out: &mut String, line: &Line, area: &Area) {
    let color = line.system.color();
    let dashes = match line.part {
        None | Some((_, Stroke::Solid)) => "",
        Some((_, Stroke::Dashed)) => " stroke-dasharray=\"8 4\"",
        Some((_, Stroke::Dotted)) => " stroke-dasharray=\"2 4\"",
    };
    let places: Vec<_> = line.points.iter().map(|point| area.place(point, point.y.median)).collect();
    let points = pairs(places.iter().copied());
    let _ =
        writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dashes}/>");
    for (x, y) in places {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
    }
}

/// Where the lines' names go: behind their last points, pushed apart where they would lie on one another.
fn names(lines: &[Line], area: &Area) -> Vec<(f64, f64)> {
    let end = |line: &Line| line.points.last().map_or((RIGHT, BOTTOM), |point| area.place(point, point.y.median));
    let mut places: Vec<(f64, f64)> = lines.iter().map(end).map(|(x, y)| (x + 9.0, y + 5.0)).collect();
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|a, b| f64::total_cmp(&places[*a].1, &places[*b].1));
    let width = |index: usize| lines[index].name().chars().count() as f64 * LETTER;
    let beside = |places: &[(f64, f64)], a: usize, b: usize| {
        places[a].0 < places[b].0 + width(b) && places[b].0 < places[a].0 + width(a)
    };
    // From above, each below those that it would meet; then, if that has left the picture, from below.
    for (rank, index) in order.iter().enumerate() {
        for earlier in &order[..rank] {
            if beside(&places, *index, *earlier) {
                places[*index].1 = places[*index].1.max(places[*earlier].1 + LINE_HEIGHT);
            }
        }
    }
    for (rank, index) in order.iter().enumerate().rev() {
        places[*index].1 = places[*index].1.min(BOTTOM + 4.0);
        for later in &order[rank + 1..] {
            if beside(&places, *index, *later) {
                places[*index].1 = places[*index].1.min(places[*later].1 - LINE_HEIGHT);
            }
        }
    }
    places
}

fn pairs(places: impl Iterator<Item = (f64, f64)>) -> String {
    places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn segment(out: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"{color}\"/>");
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, color: &str, text: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// A number in few characters: 0.5, 20k, 1.5M.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        big if big >= 0.99e9 => (value / 1e9, "G"),
        big if big >= 0.99e6 => (value / 1e6, "M"),
        big if big >= 0.99e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::super::System;
    use super::*;

    fn axis(title: &'static str) -> Axis {
        Axis { title, scale: Scale::Logarithmic }
    }

    fn line(system: System, points: &[(f64, f64)]) -> Line {
        let point = |(x, y): &(f64, f64)| Point { x: *x, y: Summary { median: *y, min: y / 2.0, max: y * 2.0 } };
        Line { system, part: None, points: points.iter().map(point).collect() }
    }

    fn plot(lines: Vec<Line>) -> Plot {
        Plot { name: "a-plot", title: "A & B", x: axis("clients"), y: axis("records/s"), lines }
    }

    #[test]
    fn marks_have_short_names() {
        let names = |low, high| -> Vec<String> {
            let side = Side { scale: Scale::Logarithmic, low, high, pixels: (0.0, 1.0) };
            side.marks().into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(2.1, 2.9), ["200", "500"]);
        assert_eq!(names(-1.0, 6.0), ["0.1", "1", "10", "100", "1k", "10k", "100k", "1M"]);
    }

    #[test]
    fn a_line_has_its_colour_band_and_name() {
        let svg = draw(&plot(vec![line(System::Redis, &[(1.0, 10.0), (8.0, 40.0)])]));
        assert_eq!(svg.matches(System::Redis.color()).count(), 5, "band, line, two points and name: {svg}");
        for part in ["<polygon", "<polyline", ">Redis</text>", ">A &amp; B</text>", ">clients</text>"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn names_of_lines_that_meet_are_pushed_apart() {
        let systems = [System::Shm, System::Tcp, System::Redis, System::Etcd, System::Nats];
        for height in [10.0, 1000.0] {
            let mut lines: Vec<Line> = systems.iter().map(|s| line(*s, &[(1.0, 10.0), (8.0, height)])).collect();
            lines.push(line(System::Rpc, &[(1.0, 1000.0)]));
            let area = Area::of(&plot(lines.clone()));
            let mut heights: Vec<f64> = names(&lines[..5], &area).into_iter().map(|(_, y)| y).collect();
            heights.sort_by(f64::total_cmp);
            assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= LINE_HEIGHT - 0.01), "{heights:?}");
            assert!(heights.iter().all(|y| (0.0..HEIGHT).contains(y)), "{heights:?}");
        }
    }

    #[test]
    fn a_plot_without_spread_is_drawn() {
        for lines in [vec![line(System::Shm, &[(5.0, 5.0)])], vec![line(System::Shm, &[(5.0, 0.0)])], Vec::new()] {
            let svg = draw(&plot(lines));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
