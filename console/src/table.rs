//! Tables as printed by commands: a header, aligned columns, and no blanks after the last column. A row is one line, for any contents of its
//! cells.

use std::fmt;

use lattice_daemon::printable;

/// Alignment of a text in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For names.
    Left,
    /// For numbers.
    Right,
}

/// A table of `N` columns; its `Display` ends with a line end.
#[derive(Clone, Debug)]
pub struct Table<const N: usize> {
    aligns: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// Creates a table with these headers.
    pub fn new(columns: [(&str, Align); N]) -> Self {
        Self { aligns: columns.map(|(_, align)| align), rows: vec![columns.map(|(head, _)| head.to_owned())] }
    }

    /// The lines, cut to `width` columns if it is known.
    pub fn within(&self, width: Option<usize>) -> String {
        let text = self.to_string();
        let Some(width) = width.filter(|&width| width > 0) else { return text };
        text.lines().map(|line| line.chars().take(width).collect::<String>() + "\n").collect()
    }

    /// Appends a row. Control characters are shown in letters.
    pub fn push(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| printable(&cell).into_owned()));
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(widths).zip(self.aligns) {
                line += &match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_text() {
        let mut table = Table::new([("N", Align::Right), ("NAME", Align::Left), ("WHY", Align::Left)]);
        table.push(["7".to_owned(), "ä".to_owned(), String::new()]);
        table.push(["128".to_owned(), "longer".to_owned(), "so".to_owned()]);
        assert_eq!(table.to_string(), "  N  NAME    WHY\n  7  ä\n128  longer  so\n");
    }

    #[test]
    fn lines_are_cut_to_a_known_width() {
        let mut table = Table::new([("ID", Align::Left), ("COMMAND", Align::Left)]);
        table.push(["7".to_owned(), "./ä.out and more".to_owned()]);
        assert_eq!(table.within(Some(8)), "ID  COMM\n7   ./ä.\n");
        assert_eq!(table.within(Some(80)), table.to_string());
        assert_eq!((table.within(None), table.within(Some(0))), (table.to_string(), table.to_string()));
    }

    #[test]
    fn a_cell_of_somebody_elses_words_stays_in_its_row() {
        let mut table = Table::new([("COMMAND", Align::Left), ("CAUSE", Align::Left)]);
        table.push(["sh -c \x1b[2J\nID  root".to_owned(), "none".to_owned()]);
        assert_eq!(table.to_string(), "COMMAND                  CAUSE\nsh -c \\x1b[2J\\nID  root  none\n");
    }

    proptest::proptest! {
        /// All cells of a column start or end at the same position as its header, and no line ends with a blank.
        #[test]
        fn every_row_has_its_cells_in_their_columns(rows in proptest::collection::vec(("[a-z]{1,9}", 0_u32..100_000), 0..20)) {
            let mut table = Table::new([("NAME", Align::Left), ("RANKS", Align::Right)]);
            rows.iter().for_each(|(name, ranks)| table.push([name.clone(), ranks.to_string()]));
            let text = table.to_string();
            let ends: std::collections::HashSet<usize> = text.lines().map(str::len).collect();
            proptest::prop_assert_eq!(ends.len(), 1);
            for (line, (name, ranks)) in text.lines().skip(1).zip(&rows) {
                let words: Vec<&str> = line.split_whitespace().collect();
                proptest::prop_assert_eq!(words, [name.as_str(), &ranks.to_string()]);
            }
        }
    }
}
