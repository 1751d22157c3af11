//! The exit codes of a launch in words. `--help`, `lattice explain` and docs/reference/exit-codes.md have the same rows.

use nix::sys::signal::Signal;

use super::by_signal;

/// A row: one or several codes with their cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode {
    /// The code, or the rule for it.
    pub codes: &'static str,
    /// Cause of the code.
    pub cause: &'static str,
    /// Next step; empty for a success.
    pub action: &'static str,
}

const fn row(codes: &'static str, cause: &'static str, action: &'static str) -> ExitCode {
    ExitCode { codes, cause, action }
}

/// Row of all failures of a program.
const OF_PROGRAM: &str = "1 to 255";
/// Row of all signals.
const OF_SIGNAL: &str = "128 + N";
/// Row of `MPI_Abort`.
const OF_ABORT: &str = "CODE";

/// Codes of a launch, as listed by `--help` and the man page.
pub const TABLE: [ExitCode; 10] = [
    row("0", "each rank returned 0", ""),
    row(
        OF_PROGRAM,
        "the exit status of the first rank that failed; with -K0 the highest of all",
        "read the last line on standard error, which names the rank; -l shows the rank of each line of output",
    ),
    row(
        OF_SIGNAL,
        "signal N killed the first rank that failed, or the launch ended by signal N",
        "read the last line on standard error, which names the rank or the signal",
    ),
    row(
        OF_ABORT,
        "MPI_Abort(comm, CODE): the lowest 8 bits; 1 if they are 0",
        "read the output of the rank before the abort; the last line on standard error names it",
    ),
    row(
        "1",
        "a rank returned 0 before MPI_Init or without MPI_Finalize, or broke the PMI protocol",
        "look for an exit or an exception of that rank; in Python: python3 -m mpi4py PROGRAM",
    ),
    row("1", "a node was lost, with --no-kill", "lattice nodes shows the state of the nodes"),
    row(
        "124",
        "--timeout, --time or --wait expired",
        "a longer limit; lattice stacks ID shows the functions of ranks that hang",
    ),
    row(
        "125",
        "Lattice refused the line or failed, a node was lost, or --fence-timeout expired",
        "read the message on standard error; lattice doctor checks this machine and the cluster",
    ),
    row("126", "the program cannot be executed", "chmod +x PROGRAM, or its interpreter before it"),
    row("127", "the program does not exist", "./PROGRAM, or a path that exists on the nodes; --bcast copies it there"),
];

/// Codes that are frequent, each with its usual reason.
pub const FREQUENT: [ExitCode; 8] = [
    row(
        "129",
        "the launch received SIGHUP: its terminal was closed",
        "--detach, for a launch that goes on without a terminal",
    ),
    row(
        "130",
        "the launch received SIGINT (Ctrl-C)",
        "--detach, for a launch that goes on; lattice attach ID follows it",
    ),
    row(
        "134",
        "SIGABRT killed a rank: an assertion, or an error in a library",
        "read the output of the rank before it",
    ),
    row(
        "137",
        "SIGKILL killed a rank: often the kernel, without free memory",
        "dmesg on the node; fewer ranks on each node (--ntasks-per-node), or more memory",
    ),
    row(
        "139",
        "SIGSEGV killed a rank: a wrong address in the program",
        "ulimit -c unlimited and --propagate=core, for a core file; or a memory checker: lattice launch -n 2 valgrind PROGRAM",
    ),
    row(
        "141",
        "the reader of the output closed it (lattice launch ... | head), and no rank failed",
        "none, if that was the intent; --output FILE keeps all output",
    ),
    row(
        "143",
        "SIGTERM, lattice cancel, or the end of the allocation",
        "lattice explain ID prints the cause of a launch on a cluster",
    ),
    row(
        "255",
        "lattice-mpi-launcher, or ssh or rsh in an allocation, did not start the command",
        "read the message on standard error; lattice nodes shows the state of the nodes",
    ),
];

/// A possible meaning of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The code, or the rule by which it is made.
    pub codes: String,
    /// The row of the rule.
    pub row: ExitCode,
}

/// Meanings of a code, the most specific one first.
pub fn meanings(code: u8) -> Vec<Meaning> {
    let number = code.to_string();
    let own = FREQUENT.iter().chain(&TABLE).filter(|row| row.codes == number);
    let mut meanings: Vec<Meaning> = own.map(|&row| Meaning { codes: number.clone(), row }).collect();
    let rule = |name: &str| TABLE.into_iter().find(|row| row.codes == name);
    // The last signal of Linux is 64.
    if let Some(signal) = (1..=64).find(|&signal| by_signal(signal) == code) {
        let name = Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.to_string());
        meanings.extend(rule(OF_SIGNAL).map(|row| Meaning { codes: format!("128 + {signal} ({name})"), row }));
    }
    if code != 0 {
        let rules = [OF_PROGRAM, OF_ABORT].map(rule).into_iter().flatten();
        meanings.extend(rules.map(|row| Meaning { codes: row.codes.to_owned(), row }));
    }
    meanings
}

/// Next step for the end of a rank with this code; `None` for a code without a usual reason.
pub fn usual_action(code: u8) -> Option<&'static str> {
    let number = code.to_string();
    FREQUENT.iter().find(|row| row.codes == number).map(|row| row.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two columns of the page, without the marks of Markdown.
    fn page() -> Vec<(String, String)> {
        let page = include_str!("../../../docs/reference/exit-codes.md").replace("\\|", "\u{1}");
        let row = |line: &str| {
            let cells: Vec<String> =
                line.split('|').map(|cell| cell.trim().replace('`', "").replace('\u{1}', "|")).collect();
            let [_, codes, cause, _] = <[String; 4]>::try_from(cells).ok()?;
            Some((codes, cause))
        };
        page.lines().filter_map(row).collect()
    }

    #[test]
    fn the_page_has_the_same_rows() {
        let page = page();
        for table in [&TABLE[..], &FREQUENT[..]] {
            let first = page.iter().position(|(codes, cause)| (&**codes, &**cause) == (table[0].codes, table[0].cause));
            let first = first.unwrap_or_else(|| panic!("the page has no row of {:?}", table[0]));
            let rows = table.iter().map(|row| (row.codes.to_owned(), row.cause.to_owned()));
            assert_eq!(page[first..][..table.len()], rows.collect::<Vec<_>>());
            let after = page.get(first + table.len()).map(|(codes, _)| codes.as_str());
            assert!(after.is_none_or(|codes| codes.parse::<u8>().is_err()), "the page has one more row: {after:?}");
        }
    }

    #[test]
    fn each_code_has_its_meanings_the_most_specific_first() {
        let check = |code, expected: &[&str]| {
            let meanings = meanings(code);
            assert_eq!(meanings.iter().map(|meaning| meaning.codes.as_str()).collect::<Vec<_>>(), expected, "{code}");
        };
        check(0, &["0"]);
        check(1, &["1", "1", "1 to 255", "CODE"]);
        check(3, &["1 to 255", "CODE"]);
        check(125, &["125", "1 to 255", "CODE"]);
        check(139, &["139", "128 + 11 (SIGSEGV)", "1 to 255", "CODE"]);
        check(162, &["128 + 34 (signal 34)", "1 to 255", "CODE"]);
        check(200, &["1 to 255", "CODE"]);
        check(255, &["255", "1 to 255", "CODE"]);
        assert!((1..=255).all(|code| meanings(code).iter().all(|meaning| !meaning.row.action.is_empty())));
    }
}
