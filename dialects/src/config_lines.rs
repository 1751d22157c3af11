//! Lines of a file of programs. A line that ends with a backslash continues on the next line. Empty lines and comments are omitted (MPI 4.1,
//! 11.5, form B; srun(1), "multiple program configuration"; Hydra 5.0.2).

/// Lines without blanks at both ends, each with the number of its first line in the text, counted from 1.
pub fn config_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let is_comment = begun.is_none() && line.trim_start().starts_with('#');
        let (number, whole) = match begun.take() {
            Some((number, before)) => (number, before + line),
            None => (number, line.to_owned()),
        };
        match whole.strip_suffix('\\') {
            _ if is_comment => {}
            Some(before) => begun = Some((number, before.to_owned())),
            None => lines.push((number, whole)),
        }
    }
    lines.extend(begun);
    let trimmed = lines.into_iter().map(|(number, line)| (number, line.trim().to_owned()));
    trimmed.filter(|(_, line)| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_behind_a_backslash() {
        let check = |text: &str, expected: &[(usize, &str)]| {
            let lines = config_lines(text);
            let seen: Vec<_> = lines.iter().map(|(number, line)| (*number, line.as_str())).collect();
            assert_eq!(seen, expected, "{text:?}");
        };
        check("a\nb\n", &[(1, "a"), (2, "b")]);
        check("# c \\\n-n 1 \\\n  a \\\n b\n\n c", &[(2, "-n 1   a  b"), (6, "c")]);
        check("a \\\r\n# b\r\n", &[(1, "a # b")]);
        check("a\\", &[(1, "a")]);
        check("\\\n\n", &[]);
    }
}
