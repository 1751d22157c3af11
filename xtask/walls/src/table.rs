//! Table of crates, for people.

use crate::measure::{Figures, Measured};
use crate::sizes::Kind;

const HEAD: [&str; 15] = [
    "crate",
    "files",
    "lines",
    "tests",
    "ratio",
    "public",
    "docs",
    "> 450 lines",
    "> 60 lines",
    "> 15 fields",
    "> 35 methods",
    "bool args",
    "riddles",
    "largest file",
    "largest function",
];

/// Lines of the table: a head, one for each crate, the sum.
pub(crate) fn render(crates: &[(String, Figures)]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(crates.iter().map(|(name, figures)| row(name, figures)));
    rows.push(sum(crates));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            // Numbers to the right, names to the left.
            let is_name = column == 0 || column >= HEAD.len() - 2;
            let cell = if is_name { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
            text.push_str(&cell);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn row(name: &str, figures: &Figures) -> [String; 15] {
    let below = |measured: &Measured| {
        let place = measured.place.strip_prefix(name).unwrap_or(&measured.place);
        format!("{} {}", measured.size, place.trim_start_matches('/').trim_start_matches("src/"))
    };
    [
        name.to_owned(),
        figures.files.to_string(),
        figures.lines.to_string(),
        figures.test_lines.to_string(),
        ratio(figures.test_lines, figures.lines),
        figures.public_items.to_string(),
        share(figures.public_items - figures.undocumented.len(), figures.public_items),
        figures.count_large(Kind::File).to_string(),
        figures.count_large(Kind::Function).to_string(),
        figures.count_large(Kind::Fields).to_string(),
        figures.count_large(Kind::Methods).to_string(),
        figures.bool_functions.len().to_string(),
        figures.riddles.len().to_string(),
        below(&figures.largest_file),
        below(&figures.largest_function),
    ]
}

fn sum(crates: &[(String, Figures)]) -> [String; 15] {
    let add = |of: fn(&Figures) -> usize| crates.iter().map(|(_, figures)| of(figures)).sum::<usize>();
    let (lines, test_lines, public) = (add(|f| f.lines), add(|f| f.test_lines), add(|f| f.public_items));
    [
        "sum".to_owned(),
        add(|f| f.files).to_string(),
        lines.to_string(),
        test_lines.to_string(),
        ratio(test_lines, lines),
        public.to_string(),
        share(public - add(|f| f.undocumented.len()), public),
        add(|f| f.count_large(Kind::File)).to_string(),
        add(|f| f.count_large(Kind::Function)).to_string(),
        add(|f| f.count_large(Kind::Fields)).to_string(),
        add(|f| f.count_large(Kind::Methods)).to_string(),
        add(|f| f.bool_functions.len()).to_string(),
        add(|f| f.riddles.len()).to_string(),
        String::new(),
        String::new(),
    ]
}

fn ratio(tests: usize, lines: usize) -> String {
    format!("{:.2}", tests as f64 / lines.max(1) as f64)
}

fn share(part: usize, whole: usize) -> String {
    (part * 100).checked_div(whole).map_or("-".to_owned(), |share| format!("{share} %"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_add_up() {
        let figures =
            |lines, test_lines| Figures { files: 1, lines, test_lines, public_items: 2, ..Figures::default() };
        let text = render(&[("a".to_owned(), figures(100, 50)), ("long-name".to_owned(), figures(2000, 600))]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("a              1    100     50   0.50       2  100 %"), "{text}");
        assert!(lines[3].starts_with("sum            2   2100    650   0.31       4  100 %"), "{text}");
    }
}
