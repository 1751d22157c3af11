//! Drawing of a graph: members on a circle, links as lines, kinds of links as colours.

use std::collections::{BTreeSet, HashMap};
use std::f64::consts::TAU;

use lattice_daemon::printable;

use super::{Graph, process};

/// Width and height of a member's box, and minimum distance between the centres of two boxes.
const BOX: (f64, f64) = (230.0, 44.0);
const DISTANCE: f64 = 270.0;
/// Maximum number of characters of a line in a box.
const LINE_MAX: usize = 34;
/// Colours of the kinds of links, in the order of their names.
const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];

/// Sine and cosine of an angle up to a full turn, by their series. The functions of the system are in a library that every command of this
/// program would load.
fn sine_and_cosine(angle: f64) -> (f64, f64) {
    let (mut sine, mut cosine, mut term) = (0.0, 0.0, 1.0);
    for power in 0..40_u8 {
        match power % 4 {
            0 => cosine += term,
            1 => sine += term,
            2 => cosine -= term,
            _ => sine -= term,
        }
        term *= angle / f64::from(power + 1);
    }
    (sine, cosine)
}

/// Returns the drawing as a complete document.
pub(super) fn svg(graph: &Graph) -> String {
    let radius = (graph.members.len() as f64 * DISTANCE / TAU).max(DISTANCE * 0.6);
    let middle = radius + BOX.0;
    let place = |index: usize| {
        let turn = TAU * index as f64 / graph.members.len().max(1) as f64;
        let (sine, cosine) = sine_and_cosine(turn);
        (middle + radius * sine, middle - radius * cosine)
    };
    let places: HashMap<&str, (f64, f64)> =
        graph.members.iter().enumerate().map(|(index, node)| (node.address.as_str(), place(index))).collect();
    let mut kinds = BTreeSet::new();
    kinds.extend(graph.links.iter().map(|edge| edge.kind.as_str()));
    let colours: HashMap<&str, &str> = kinds.into_iter().zip(COLOURS.into_iter().cycle()).collect();
    let side = 2.0 * middle;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{side:.0}\" height=\"{side:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for edge in &graph.links {
        let (Some(a), Some(b)) = (places.get(edge.a.as_str()), places.get(edge.b.as_str())) else { continue };
        let colour = colours.get(edge.kind.as_str()).unwrap_or(&COLOURS[0]);
        let label = text(&format!("{}, {} frames", edge.kind, edge.frames), usize::MAX);
        out += &format!(
            "<line x1=\"{:.0}\" y1=\"{:.0}\" x2=\"{:.0}\" y2=\"{:.0}\" stroke=\"{colour}\" stroke-width=\"2\">\
             <title>{label}</title></line>\n<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{label}</text>\n",
            a.0,
            a.1,
            b.0,
            b.1,
            (a.0 + b.0) / 2.0,
            (a.1 + b.1) / 2.0 - 4.0
        );
    }
    for (node, (x, y)) in graph.members.iter().zip((0..).map(place)) {
        let (left, top) = (x - BOX.0 / 2.0, y - BOX.1 / 2.0);
        let time = node.round_trip_s.map_or("no answer".to_owned(), |seconds| format!("{:.0} us", seconds * 1e6));
        out += &format!(
            "<rect x=\"{left:.0}\" y=\"{top:.0}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#f6f8fa\" stroke=\"#24292f\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
            BOX.0,
            BOX.1,
            y - 4.0,
            text(&format!("{}: {}", node.set_id, node.command), LINE_MAX),
            y + 14.0,
            text(&format!("{} on {}, {time}", process(&node.address), node.node), LINE_MAX)
        );
    }
    out + "</svg>\n"
}

/// A text for the document: markup and control characters are escaped, and it is cut after `most` characters.
fn text(text: &str, most: usize) -> String {
    let shown = printable(text);
    let cut: String = shown.chars().take(most).collect();
    let ending = if cut.len() < shown.len() { ".." } else { "" };
    format!("{}{ending}", cut.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_followed_to_its_end() {
        for step in 0..=64 {
            let angle = TAU * f64::from(step) / 64.0;
            let (sine, cosine) = sine_and_cosine(angle);
            assert!((sine - angle.sin()).abs() < 1e-9 && (cosine - angle.cos()).abs() < 1e-9, "{angle}");
        }
    }
}
