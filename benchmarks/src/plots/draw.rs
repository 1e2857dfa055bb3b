//! Draws plots as SVG.

use std::error::Error;
use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::{Axis, Content, Line, Plot, Scale};
use crate::statistics::Summary;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

const SIZE: (u32, u32) = (960, 540);
/// Distinguishable on white, also by people who do not see red and green apart (Okabe and Ito), then darker ones.
const COLORS: [RGBColor; 11] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(120, 60, 20),
    RGBColor(90, 60, 150),
    RGBColor(110, 110, 110),
    RGBColor(160, 0, 60),
];

/// The plot as SVG.
pub(crate) fn draw(plot: &Plot) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = match &plot.content {
        Content::Lines { x, y, lines } => draw_lines(&area, &plot.title, *x, *y, lines),
        Content::Bars { x, parts, rows } => draw_bars(&area, &plot.title, x, parts, rows),
    };
    drawn.map_err(|error| anyhow!("{error}"))?;
    drop(area);
    svg.push('\n');
    Ok(svg)
}

fn draw_lines<'a>(area: &Area<'a>, title: &str, x: Axis, y: Axis, lines: &[Line]) -> Drawn {
    area.fill(&WHITE)?;
    let place = |&(a, b): &(f64, f64)| Some((x.scale.place(a)?, y.scale.place(b)?));
    let places = |line: &Line| -> Vec<(f64, f64)> { line.points.iter().filter_map(place).collect() };
    let all: Vec<(f64, f64)> = lines.iter().flat_map(places).collect();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(
            Places::new(x.scale, all.iter().map(|point| point.0)),
            Places::new(y.scale, all.iter().map(|point| point.1)),
        )?;
    chart
        .configure_mesh()
        .x_labels(12)
        .y_labels(12)
        .light_line_style(TRANSPARENT)
        .x_desc(x.title)
        .y_desc(y.title)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let points = places(line);
        // A measured point each; the hundred points of a distribution need no marks.
        let marks = if points.len() <= 20 { points.clone() } else { Vec::new() };
        let series = chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
        series.label(&line.name).legend(move |at| Rectangle::new([at, (at.0 + 18, at.1 + 3)], color.filled()));
        chart.draw_series(marks.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}

fn draw_bars<'a>(area: &Area<'a>, title: &str, x: &str, parts: &[&str], rows: &[(String, Vec<f64>)]) -> Drawn {
    area.fill(&WHITE)?;
    let longest = rows.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(10)
        // Room for the legend to the right of the bars.
        .build_cartesian_2d(0.0..longest * 1.35, 0.0..rows.len().max(1) as f64)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().light_line_style(TRANSPARENT).x_desc(x).draw()?;
    for (index, part) in parts.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let bar = |(row, (_, values)): (usize, &(String, Vec<f64>))| {
            let from: f64 = values[..index].iter().sum();
            let (low, high) = (row as f64 + 0.15, row as f64 + 0.6);
            Rectangle::new([(from, low), (from + values[index], high)], color.filled())
        };
        let series = chart.draw_series(rows.iter().enumerate().map(bar))?;
        series.label(*part).legend(move |at| Rectangle::new([at, (at.0 + 18, at.1 + 3)], color.filled()));
    }
    let label = |(row, (name, _)): (usize, &(String, Vec<f64>))| {
        Text::new(name.clone(), (longest * 0.005, row as f64 + 0.75), ("sans-serif", 15))
    };
    chart.draw_series(rows.iter().enumerate().map(label))?;
    legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    area.present()?;
    Ok(())
}

fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64> + 'a,
    Y: Ranged<ValueType = f64> + 'a,
{
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

impl Scale {
    /// Where a value lies on a linear axis; `None` if it has no place.
    fn place(self, value: f64) -> Option<f64> {
        match self {
            Scale::Logarithmic => (value > 0.0).then(|| value.log10()),
            Scale::Nines => (value < 1.0).then(|| -(1.0 - value).log10()),
        }
    }

    /// Places that have a name, as far as `high`.
    fn marks(self, low: f64, high: f64) -> Vec<f64> {
        match self {
            Scale::Logarithmic => {
                // 1, 2 and 5 of each power of ten, or the powers alone where those would be many.
                let digits: &[f64] = if high - low < 4.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let powers = low.floor() as i32..=high.ceil() as i32;
                powers.flat_map(|power| digits.iter().map(move |digit| f64::from(power) + digit.log10())).collect()
            }
            Scale::Nines => {
                let nines = (1..=high.ceil() as i32).map(f64::from);
                [0.0, 0.5f64.log10().abs()].into_iter().chain(nines).collect()
            }
        }
    }

    /// What to write at a place.
    fn label(self, place: f64) -> String {
        match self {
            Scale::Logarithmic => short(10f64.powf(place)),
            Scale::Nines => {
                let percent = 100.0 * (1.0 - 10f64.powf(-place));
                let digits = (place - 2.0).clamp(0.0, 6.0).round() as usize;
                format!("{percent:.digits$} %")
            }
        }
    }
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

/// A coordinate of places, with marks where the scale has names.
struct Places {
    scale: Scale,
    range: Range<f64>,
}

impl Places {
    /// As much of the axis as these places need: never nothing.
    fn new(scale: Scale, places: impl Iterator<Item = f64>) -> Places {
        let found = Summary::of(places).unwrap_or(Summary { median: 0.0, min: 0.0, max: 1.0 });
        let room = ((found.max - found.min) * 0.04).max(0.05);
        let low = match scale {
            Scale::Logarithmic => found.min - room,
            Scale::Nines => 0.0,
        };
        Places { scale, range: low..found.max + room }
    }
}

impl Ranged for Places {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let marks = self.scale.marks(self.range.start, self.range.end);
        marks.into_iter().filter(|mark| self.range.contains(mark)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Places {
    fn format_ext(&self, value: &f64) -> String {
        self.scale.label(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_short_names() {
        let labels = |scale: Scale, low, high| -> Vec<String> {
            scale.marks(low, high).into_iter().map(|mark| scale.label(mark)).collect()
        };
        assert_eq!(labels(Scale::Logarithmic, 2.1, 2.9), ["100", "200", "500", "1k", "2k", "5k"]);
        assert_eq!(labels(Scale::Logarithmic, -1.0, 6.0), ["0.1", "1", "10", "100", "1k", "10k", "100k", "1M"]);
        assert_eq!(labels(Scale::Nines, 0.0, 4.0), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn a_plot_without_spread_is_drawn() {
        let axis = Axis { title: "x", scale: Scale::Logarithmic };
        let lines = vec![Line { name: "a".to_owned(), points: vec![(5.0, 5.0), (0.0, 1.0)] }];
        let plot = Plot { title: "one point".to_owned(), content: Content::Lines { x: axis, y: axis, lines } };
        assert!(draw(&plot).unwrap().contains("one point"));
        let empty = Content::Bars { x: "x", parts: vec!["part"], rows: vec![("row".to_owned(), vec![0.0])] };
        assert!(draw(&Plot { title: "nothing".to_owned(), content: empty }).unwrap().contains("row"));
    }
}
