//! Facts about the build of this program, as `--version -v` prints them.

use std::fmt;

/// Build of a program of Lattice. Its `Display` has one fact on each line.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Name of the program.
    pub program: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Versions of PMI that the program serves.
    pub pmi: &'static str,
}

impl Build {
    /// Commit of the source with its date. A debug build may have later source, because it does not follow commits.
    pub fn commit(&self) -> String {
        let (commit, date) = (env!("LATTICE_COMMIT"), env!("LATTICE_COMMIT_DATE"));
        match commit {
            "unknown" => "unknown (built without git)".to_owned(),
            commit if cfg!(debug_assertions) => format!("{commit} of {date}, or later (debug build)"),
            commit => format!("{commit} of {date}"),
        }
    }

    /// Parts that are compiled in. No part of a daemon or of the launcher is optional.
    pub fn features(&self) -> &'static str {
        "all: PMI, PMIx, fabric (CXI), containers"
    }

    /// Version of the compiler.
    pub fn compiler(&self) -> &'static str {
        env!("LATTICE_COMPILER")
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.program, self.version)?;
        writeln!(f, "commit: {}", self.commit())?;
        writeln!(f, "features: {}", self.features())?;
        writeln!(f, "PMI: {}", self.pmi)?;
        writeln!(f, "compiler: {}", self.compiler())
    }
}

/// True for a command line that requests the version with the facts about the build: `--version` and `-v`, and no word other than flags.
pub fn is_requested<'a>(words: impl IntoIterator<Item = &'a str>) -> bool {
    let (mut version, mut verbose) = (false, false);
    for word in words {
        match word {
            "-V" | "--version" => version = true,
            "-v" | "--verbose" => verbose = true,
            "-Vv" | "-vV" => (version, verbose) = (true, true),
            _ => return false,
        }
    }
    version && verbose
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_are_requested_by_two_flags() {
        let check = |line: &str, expected| assert_eq!(is_requested(line.split_whitespace()), expected, "{line:?}");
        check("--version -v", true);
        check("-v --version", true);
        check("--verbose -V", true);
        check("-Vv", true);
        check("--version", false);
        check("-v", false);
        check("", false);
        check("launch --version -v", false);
    }

    #[test]
    fn each_fact_has_a_line() {
        let text = Build { program: "lattice", version: "0.1.0", pmi: "PMI-1.1" }.to_string();
        let names: Vec<&str> = text.lines().skip(1).filter_map(|line| Some(line.split_once(": ")?.0)).collect();
        assert!(text.starts_with("lattice 0.1.0\n"), "{text}");
        assert_eq!(names, ["commit", "features", "PMI", "compiler"]);
    }
}
