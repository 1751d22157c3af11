//! `lattice-agent`: the program of the node agent. All of it but the printing is in the library.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use lattice_agent::{Answer, Args, Exit};

fn main() -> ExitCode {
    let Answer { text, mut problems, mut exit } = match Args::try_parse() {
        Ok(args) => lattice_agent::run(args),
        Err(answer) => {
            // A closed stream leaves nobody to be told of it.
            let _ = answer.print();
            return if answer.use_stderr() { Exit::Failure } else { Exit::Success }.into();
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        // A closed pipe: its reader has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            problems.push(format!("cannot write the answer: {error}"));
            exit = Exit::Failure;
        }
        _ => {}
    }
    problems.iter().flat_map(|problem| problem.lines()).for_each(|line| eprintln!("lattice-agent: {line}"));
    exit.into()
}
