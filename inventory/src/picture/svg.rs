//! Drawing of a kind of node: a box for each object within the box of its parent, with devices below.

use std::fmt::Write;

use quick_xml::escape::escape;

use super::{Cores, View, device_line, object_title};
use crate::template::PciDevice;
use crate::tree::{Object, ObjectKind, Tree};

/// Lengths in pixels: of a line of text, between boxes, of a letter (approximately), and of the narrowest box.
const LINE: usize = 16;
const GAP: usize = 6;
const LETTER: usize = 7;
const NARROWEST: usize = 44;

/// Colour of a core with content.
const TAKEN: &str = "#9fc79f";

/// Colour of a core or CPU that ranks may not use, and the name of the colour.
const SHUT: &str = "#bbbbbb";
const SHUT_NAME: &str = "grey";

/// Drawing as an SVG 1.1 document, with `title` above it.
pub fn svg(view: View<'_>, title: &str) -> String {
    let tree = Tree::of(view.template);
    let whole = Block::of(&tree.root, &tree, view);
    let words = view.words(SHUT_NAME, "");
    let longest = words.iter().map(String::as_str).chain([title]).map(|line| line.chars().count()).max();
    let width = whole.width.max(longest.unwrap_or(0) * LETTER) + 2 * GAP;
    let height = whole.height + (1 + words.len()) * LINE + 2 * GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, GAP, LINE, title);
    whole.draw(&mut out, GAP, LINE + GAP);
    for (number, line) in (2..).zip(&words) {
        text(&mut out, GAP, whole.height + GAP + number * LINE, line);
    }
    out.push_str("</svg>\n");
    out
}

/// Box with its place within the outer box.
struct Block {
    /// Lines of text at the top.
    lines: Vec<String>,
    fill: &'static str,
    width: usize,
    height: usize,
    /// Inner boxes with their places.
    within: Vec<(usize, usize, Self)>,
}

impl Block {
    /// Box of an object. An only child with the same CPUs shares the box.
    fn of(object: &Object<'_>, tree: &Tree<'_>, view: View<'_>) -> Self {
        let mut lines = vec![object_title(object)];
        let mut inner = object;
        let mut is_core = object.kind == ObjectKind::Core;
        lines.extend(memory_lines(inner, tree));
        while let [only] = &inner.children[..]
            && inner.pci.is_empty()
            && only.cpus == object.cpus
        {
            inner = only;
            is_core |= inner.kind == ObjectKind::Core;
            lines.push(object_title(inner));
            lines.extend(memory_lines(inner, tree));
        }
        let words = match view.cores {
            Cores::With(words) if is_core => words(&object.cpus),
            _ => None,
        };
        let fill = match inner.kind {
            _ if words.is_some() => TAKEN,
            ObjectKind::Core | ObjectKind::Cpu if view.is_shut(&object.cpus) => SHUT,
            kind => fill(kind),
        };
        lines.extend(words);
        let parts = inner.children.iter().map(|child| Self::of(child, tree, view)).collect();
        let devices = inner.pci.iter().copied().map(Self::device).collect();
        Self::around(lines, fill, parts, devices)
    }

    fn device(device: &PciDevice) -> Self {
        Self::around(vec![device_line(device)], "#f4d9c6", Vec::new(), Vec::new())
    }

    /// A box around rows of boxes; the boxes in `below` start a new row.
    fn around(lines: Vec<String>, fill: &'static str, parts: Vec<Self>, below: Vec<Self>) -> Self {
        let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let mut block = Self {
            width: NARROWEST.max(longest * LETTER + 2 * GAP),
            height: lines.len() * LINE + GAP,
            lines,
            fill,
            within: Vec::new(),
        };
        for group in [parts, below] {
            let columns = columns(group.len());
            let mut group = group.into_iter().peekable();
            while group.peek().is_some() {
                block.add_row(group.by_ref().take(columns).collect());
            }
        }
        block
    }

    fn add_row(&mut self, row: Vec<Self>) {
        let highest = row.iter().map(|part| part.height).max().unwrap_or(0);
        let mut x = GAP;
        for part in row {
            let next = x + part.width + GAP;
            self.within.push((x, self.height, part));
            x = next;
        }
        self.width = self.width.max(x);
        self.height += highest + GAP;
    }

    fn draw(&self, out: &mut String, x: usize, y: usize) {
        let Self { lines, fill, width, height, within } = self;
        // Writing to memory cannot fail.
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\" stroke=\"#555555\"/>"
        );
        for (number, line) in (1..).zip(lines) {
            text(out, x + GAP, y + number * LINE - 3, line);
        }
        within.iter().for_each(|(dx, dy, part)| part.draw(out, x + dx, y + dy));
    }
}

fn text(out: &mut String, x: usize, y: usize, text: &str) {
    // XML cannot represent most control characters.
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", escape(text.as_str()));
}

/// NUMA nodes at an object.
fn memory_lines(object: &Object<'_>, tree: &Tree<'_>) -> Vec<String> {
    let numa = object.numa.iter().map(|&index| &tree.numa[index]);
    numa.map(|node| match node.memory_gib {
        0 => format!("NUMA {}", node.id),
        gib => format!("NUMA {}  {gib} GiB", node.id),
    })
    .collect()
}

/// Number of boxes in a row, so that the rows form roughly a square.
fn columns(boxes: usize) -> usize {
    match boxes {
        0..=4 => boxes.max(1),
        more => (1..).find(|columns| columns * columns >= more).unwrap_or(more),
    }
}

fn fill(kind: ObjectKind<'_>) -> &'static str {
    match kind {
        ObjectKind::Machine => "#ffffff",
        ObjectKind::Package => "#eef3e2",
        ObjectKind::Drawer | ObjectKind::Book | ObjectKind::Die | ObjectKind::Cluster | ObjectKind::NumaGroup => {
            "#e4ecf4"
        }
        ObjectKind::Cache(_) => "#f3f3f3",
        ObjectKind::Core | ObjectKind::Cpu => "#d5e3d5",
    }
}
