//! Curves as an SVG picture, for the documentation.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

/// Width and height of one chart, in pixels.
const CHART: (u32, u32) = (330, 260);

/// Axes of a chart that is being drawn.
type Axes<'a, 'file, Y> = ChartContext<'a, SVGBackend<'file>, Cartesian2d<LogCoord<f64>, Y>>;

/// One chart: a title, and named lines.
#[derive(Debug)]
pub struct Chart {
    /// Title, with the unit.
    pub title: &'static str,
    /// Vertical axis.
    pub scale: Scale,
    /// Lines: a name, and points with both coordinates above 0.
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

/// Kind of a vertical axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Linear, from 0 on.
    Linear,
    /// Logarithmic, around the values of the lines.
    Logarithmic,
}

/// Draws charts next to each other. `x` names the horizontal axis, which is logarithmic.
///
/// # Errors
/// Fails if the file cannot be written.
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
        let middle = match self.scale {
            Scale::Linear => up.end / 2.0,
            Scale::Logarithmic => (up.start * up.end).sqrt(),
        };
        let begins_high = self.lines.iter().any(|(_, points)| points.first().is_some_and(|&(_, y)| y > middle));
        let names = if begins_high { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::UpperLeft };
        match self.scale {
            Scale::Linear => self.fill(builder.build_cartesian_2d(across.log_scale(), 0.0..up.end)?, x, names),
            Scale::Logarithmic => self.fill(builder.build_cartesian_2d(across.log_scale(), up.log_scale())?, x, names),
        }
    }

    fn fill<'a, 'file: 'a, Y>(
        &self,
        mut drawn: Axes<'a, 'file, Y>,
        x: &str,
        names: SeriesLabelPosition,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut mesh = drawn.configure_mesh();
        mesh.x_desc(x).x_labels(6).x_label_formatter(&|nodes| format!("{nodes:.0}"));
        mesh.y_labels(6).light_line_style(TRANSPARENT).draw()?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(number).mix(0.9);
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            let series = drawn.draw_series(line)?;
            series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
        }
        drawn.configure_series_labels().position(names).background_style(WHITE.mix(0.4)).draw()?;
        Ok(())
    }

    fn range(&self, of: impl Fn(&(f64, f64)) -> f64) -> Range<f64> {
        let numbers = || self.lines.iter().flat_map(|(_, points)| points).map(&of);
        let (least, most) = (numbers().fold(f64::MAX, f64::min), numbers().fold(0.0, f64::max));
        least * 0.8..most * 1.5
    }
}
