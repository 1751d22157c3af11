//! `lattice-agent`: the program of the node agent. The library implements all of it except the output.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use lattice_agent::{Answer, Args, Exit};

fn main() -> ExitCode {
    let Answer { text, mut problems, mut exit } = match Args::try_parse() {
        Ok(args) => lattice_agent::run(args),
        // The flag `-v` has no other meaning.
        Err(_) if is_build_requested() => lattice_agent::build(),
        Err(answer) => {
            // If the stream is closed, there is no reader.
            let _ = answer.print();
            return if answer.use_stderr() { Exit::Failure } else { Exit::Success }.into();
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            problems.push(format!("cannot write the answer: {error}"));
            exit = Exit::Failure;
        }
        _ => {}
    }
    problems.iter().flat_map(|problem| problem.lines()).for_each(|line| eprintln!("lattice-agent: {line}"));
    exit.into()
}

/// True for `lattice-agent --version -v`.
fn is_build_requested() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect();
    lattice_daemon::build::is_requested(words.iter().map(String::as_str))
}
