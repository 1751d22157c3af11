//! Output of an `mpiexec` of Hydra, and the lines in it that request proxies.

/// Start of a line that requests a proxy, and the line after the last request.
const ASKS: &[u8] = b"HYDRA_LAUNCH: ";
const END: &[u8] = b"HYDRA_LAUNCH_END";
/// Program in a request. It distinguishes a request from an equal start of a line of a rank.
const PROXY: &str = "hydra_pmi_proxy";
const NUMBER: &str = "--proxy-id";
/// Maximum length of a line that is held back, in bytes.
const LINE_MAX: usize = 64 << 10;

/// A requested proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Index of its host.
    pub(super) proxy: usize,
    /// Command for a shell on the host.
    pub(super) command: String,
}

/// Output in pieces: bytes to forward, and the start of a line that may be a request.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
    /// True within a line that is not a request.
    within: bool,
    passed: Vec<u8>,
}

impl Lines {
    /// Processes the next bytes. Returns the requested proxies.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Asked> {
        let mut asked = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let is_whole = line.last() == Some(&b'\n');
            if self.within {
                self.passed.extend_from_slice(line);
            } else {
                self.held.extend_from_slice(line);
                match (is_whole, may_be_ours(&self.held) && self.held.len() <= LINE_MAX) {
                    (true, true) => asked.extend(self.whole_line()),
                    (_, false) => self.passed.append(&mut self.held),
                    (false, true) => continue,
                }
            }
            self.within = !is_whole;
        }
        asked
    }

    /// Removes the bytes that are to be forwarded now.
    pub(super) fn passed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.passed)
    }

    /// Removes the remaining bytes after the end of the output.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Proxy that the held line requests. Forwards a line that only starts like a request.
    fn whole_line(&mut self) -> Option<Asked> {
        let line = std::mem::take(&mut self.held);
        if line.trim_ascii() == END {
            return None;
        }
        let asked = line.strip_prefix(ASKS).and_then(asked);
        if asked.is_none() {
            self.passed.extend(line);
        }
        asked
    }
}

/// True for the start of a request or of the end line.
fn may_be_ours(line: &[u8]) -> bool {
    [ASKS, END].iter().any(|ours| line.starts_with(ours) || ours.starts_with(line))
}

fn asked(line: &[u8]) -> Option<Asked> {
    let command = str::from_utf8(line).ok()?.trim();
    let mut words = command.split_whitespace();
    let program = words.next()?.trim_matches('"');
    let proxy = words.skip_while(|word| *word != NUMBER).nth(1)?.parse().ok()?;
    (program.rsplit('/').next() == Some(PROXY)).then(|| Asked { proxy, command: command.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "HYDRA_LAUNCH: /p/hydra_pmi_proxy --control-port h:1 --proxy-id 0 \n\
        HYDRA_LAUNCH: /p/hydra_pmi_proxy --control-port h:1 --proxy-id 1 \nHYDRA_LAUNCH_END\nHY\nhello\n\
        HYDRA_LAUNCH: rm -rf / --proxy-id 0\nHYDRA_LAUNCH_ENDS\nno end";

    /// The result does not depend on the boundaries of pieces.
    #[test]
    fn lines_of_ours_are_taken_out_wherever_they_are_cut() {
        for size in [1, 2, 7, 13, 40, 1000] {
            let (mut lines, mut asked, mut passed) = (Lines::default(), Vec::new(), Vec::new());
            for piece in OUTPUT.as_bytes().chunks(size) {
                asked.extend(lines.take(piece));
                passed.extend(lines.passed());
            }
            passed.extend(lines.rest());
            let expected = "HY\nhello\nHYDRA_LAUNCH: rm -rf / --proxy-id 0\nHYDRA_LAUNCH_ENDS\nno end";
            assert_eq!(String::from_utf8(passed).unwrap(), expected, "{size}");
            let numbers: Vec<usize> = asked.iter().map(|asked| asked.proxy).collect();
            assert_eq!(numbers, [0, 1], "{size}");
            assert_eq!(asked[1].command, "/p/hydra_pmi_proxy --control-port h:1 --proxy-id 1");
        }
    }

    #[test]
    fn a_prompt_is_not_held_back_and_a_line_without_an_end_is_let_go() {
        let mut lines = Lines::default();
        lines.take(b"name: ");
        assert_eq!(lines.passed(), b"name: ");
        lines.take(b"\nHYDRA_LAUNCH: ");
        assert_eq!(lines.passed(), b"\n");
        lines.take(&[b'x'; LINE_MAX + 1]);
        assert!(lines.passed().len() > LINE_MAX);
    }
}
