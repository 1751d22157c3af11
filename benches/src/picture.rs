//! Curves as an SVG picture, for the documentation.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of one chart, in pixels.
const CHART: (u32, u32) = (330, 260);

/// One chart: a title, and lines with their names.
#[derive(Debug)]
pub struct Chart {
    /// Title, with the unit.
    pub title: &'static str,
    /// Lines: a name, and points of which both numbers are above 0.
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Draws charts side by side, both axes logarithmic; `x` names the horizontal one.
///
/// # Errors
/// Fails when the file cannot be written.
pub fn draw(file: &Path, x: &str, charts: &[Chart]) -> Result<(), Box<dyn Error>> {
    let size = (CHART.0 * charts.len() as u32, CHART.1);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, chart) in area.split_evenly((1, charts.len())).iter().zip(charts) {
        chart.draw(part, x)?;
    }
    area.present()?;
    Ok(())
}

impl Chart {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, x: &str) -> Result<(), Box<dyn Error>> {
        let mut builder = ChartBuilder::on(area);
        builder.caption(self.title, ("sans-serif", 15)).margin(8).x_label_area_size(34).y_label_area_size(56);
        let (across, up) = (self.range(|point| point.0), self.range(|point| point.1));
        let mut drawn = builder.build_cartesian_2d(across.log_scale(), up.log_scale())?;
        drawn.configure_mesh().x_desc(x).x_labels(6).y_labels(6).light_line_style(TRANSPARENT).draw()?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(number).mix(0.9);
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            let series = drawn.draw_series(line)?;
            series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
        }
        let corner = SeriesLabelPosition::UpperLeft;
        drawn.configure_series_labels().position(corner).background_style(WHITE.mix(0.8)).draw()?;
        Ok(())
    }

    fn range(&self, of: impl Fn(&(f64, f64)) -> f64) -> Range<f64> {
        let numbers = || self.lines.iter().flat_map(|(_, points)| points).map(&of);
        let (least, most) = (numbers().fold(f64::MAX, f64::min), numbers().fold(0.0, f64::max));
        least * 0.8..most * 1.5
    }
}
