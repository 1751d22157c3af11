//! The picture of a terminal in README: output of the programs, with its colours.

use std::fs;
use std::process::{Command, Stdio};

use anstyle_svg::Term;
use anyhow::{Context, Result, ensure};

use crate::demo;
use crate::shell::repository;

const FILE: &str = "docs/terminal.svg";

/// Bash in a cluster of two nodes: types commands, and shows them with a prompt.
const TYPED: &str = r#"
    stty rows 30 cols 110
    typed() { printf '\033[1m$ %s\033[0m\n' "$1"; eval "$1"; }
    printf '\033[1m$ lattice dev-cluster --nodes 2\033[0m\n'
    typed 'lattice nodes'
    typed 'lattice launch -n 4 --label=node ./ring'
    typed 'lattice launch -n 4 ./app; echo $?'
    typed 'lattice launches --all'
"#;

/// A program whose rank 3 ends before `MPI_Init`.
const APP: &str = "#!/bin/sh\n[ $LATTICE_RANK = 3 ] && exit 0\nexec ./ring\n";

/// Runs the commands on a terminal, and writes the picture.
pub(crate) fn draw() -> Result<()> {
    let built = demo::build()?;
    let directory = built.join("picture");
    fs::create_dir_all(&directory)?;
    fs::copy(built.join("examples/pmi_ring"), directory.join("ring"))?;
    fs::copy("/bin/sh", directory.join("app")).context("cannot make an executable file")?;
    fs::write(directory.join("app"), APP)?;
    fs::write(directory.join("typed"), TYPED)?;
    let cluster = format!("{}/lattice dev-cluster --nodes 2 -- bash typed", built.display());
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &cluster, "/dev/null"]).current_dir(&directory);
    terminal.env("PATH", format!("{}:{}", built.display(), std::env::var("PATH")?)).env("COLUMNS", "100");
    let output = terminal.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run script")?;
    ensure!(output.status.success(), "the commands ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?.replace('\r', "");
    fs::write(repository().join(FILE), Term::new().min_width_px(760).render_svg(text.trim_end()))?;
    println!("{FILE}");
    Ok(())
}
