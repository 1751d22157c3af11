//! The command `lattice`: see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lattice::run(std::env::args_os()))
}
