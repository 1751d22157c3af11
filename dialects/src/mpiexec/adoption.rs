//! `mpiexec -pmi_args PORT INTERFACE KEY PID`: a program of MPICH that runs without a launcher calls this line to spawn. The program listens on
//! PORT. A launch of one rank, which represents the program, serves it.

use std::ffi::OsString;

use super::super::flag::{Refusal, next_word};
use super::super::line::Translation;

/// The flag.
const FLAG: &str = "-pmi_args";

/// The launch for such a line; `None` for other lines.
pub(super) fn of(words: &[OsString]) -> Option<Result<Translation, Refusal>> {
    let (first, mut rest) = words.split_first()?;
    (first == FLAG).then(|| launch(next_word(FLAG, &mut rest)?))
}

fn launch(port: OsString) -> Result<Translation, Refusal> {
    let refused = |reason: String| Refusal::Value { flag: FLAG, value: port.to_string_lossy().into_owned(), reason };
    if port.to_str().is_none_or(|port| port.parse::<u16>().is_err()) {
        return Err(refused("it is the port of a program of MPICH, which runs this line by itself".to_owned()));
    }
    let own = std::env::current_exe().map_err(|error| refused(error.to_string()))?;
    // The program is on this machine, and so are all programs that it spawns.
    let flags = ["--alloc=local", "--pmi-port", "--stdin=none", "-n", "1"].map(OsString::from);
    let command = [own.into(), "pmi".into(), "adopt".into(), port];
    Ok(Translation { words: flags.into_iter().chain(command).collect(), ..Translation::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_asks_for_a_server_is_stood_for() {
        let line = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            of(&words).map(|line| line.map_err(|refusal| refusal.to_string()))
        };
        let words = line(&[FLAG, "4711", "default_interface", "default_key", "12"]).unwrap().unwrap().words;
        assert!(words.ends_with(&["pmi", "adopt", "4711"].map(OsString::from)), "{words:?}");
        assert!(line(&[FLAG, "port"]).unwrap().unwrap_err().contains("the port of a program of MPICH"));
        assert!(line(&[FLAG]).unwrap().is_err());
        assert!(line(&["-n", "1"]).is_none());
    }
}
