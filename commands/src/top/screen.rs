//! A table that fits on the screen. Rows that do not fit are left out, and a line reports their number.

use lattice_session::settings::TerminalSize;

/// Lines of a screen: `head` lines of `text`, then as many rows of `text` as fit, then `help`, which may be empty. Lines wider than the
/// screen are cut. For a screen of unknown size, nothing is cut.
pub(super) fn fitted(text: &str, head: usize, help: &str, size: Option<TerminalSize>) -> String {
    let Some(size) = size.filter(|size| size.rows > 0 && size.columns > 0) else { return format!("{text}{help}") };
    let lines: Vec<&str> = text.lines().collect();
    // The cursor takes the line after the last one.
    let room = usize::from(size.rows).saturating_sub(1 + help.lines().count()).max(head + 1);
    let mut shown: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
    if lines.len() > room {
        shown.truncate(room - 1);
        let more = lines.len() - shown.len();
        shown.push(format!("and {more} more; a taller screen or --once shows all"));
    }
    let cut = |line: &str| line.chars().take(size.columns.into()).collect::<String>();
    shown.iter().map(String::as_str).chain(help.lines()).map(|line| cut(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "launch\nRANK  PROGRAM\n   0  ./app\n   1  ./app\n   2  ./app\n   3  ./app\n";

    #[test]
    fn rows_that_have_no_room_are_counted() {
        let check = |rows: u16, help: &str, expected: &str| {
            let size = TerminalSize { rows, columns: 60 };
            let seen = fitted(TEXT, 2, help, Some(size));
            assert_eq!(seen, expected, "{rows}");
            assert!(seen.lines().count() < rows.max(5).into(), "{rows}");
        };
        check(7, "", TEXT);
        check(8, "keys\n", &format!("{TEXT}keys\n"));
        let more = |number: u8| format!("and {number} more; a taller screen or --once shows all\n");
        check(6, "", &format!("launch\nRANK  PROGRAM\n   0  ./app\n   1  ./app\n{}", more(2)));
        check(6, "keys\n", &format!("launch\nRANK  PROGRAM\n   0  ./app\n{}keys\n", more(3)));
        // Never less than the head.
        check(1, "", &format!("launch\nRANK  PROGRAM\n{}", more(4)));
    }

    #[test]
    fn lines_are_no_wider_than_the_screen() {
        let size = TerminalSize { rows: 24, columns: 8 };
        assert_eq!(fitted("launch änd\nRANK  PROGRAM\n", 2, "", Some(size)), "launch ä\nRANK  PR\n");
    }

    #[test]
    fn a_screen_of_no_known_size_takes_all() {
        let nothing = TerminalSize { rows: 0, columns: 0 };
        for size in [None, Some(nothing)] {
            assert_eq!(fitted(TEXT, 2, "keys\n", size), format!("{TEXT}keys\n"));
        }
    }
}
