//! Programs that draw on a terminal, or prompt on one. Without `--pty`, a rank has no terminal. Such programs report this in their own
//! words, if at all.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::Path;

use lattice_session::placed::PlacedLaunch;
use lattice_session::settings::StdinTarget;
use lattice_session::spec::AppSpec;

/// Programs that are of no use without a terminal.
const PROGRAMS: [&str; 14] =
    ["emacs", "htop", "ksh", "less", "man", "more", "nano", "screen", "tmux", "top", "vi", "view", "vim", "watch"];
/// Shells, which are interactive with `-i`.
const SHELLS: [&str; 5] = ["bash", "dash", "fish", "sh", "zsh"];

/// Note for a user at a terminal, if the launch starts such a program without a terminal.
pub(super) fn note(launch: &PlacedLaunch) -> Option<String> {
    let has_terminal = matches!(launch.settings.stdin, StdinTarget::Terminal(_));
    if has_terminal || !io::stdin().is_terminal() {
        return None;
    }
    launch.apps.iter().find(|app| wants_terminal(app)).map(|app| {
        let name = Path::new(&app.program).file_name().unwrap_or_default().display();
        format!("{name} has no terminal here\ntry: lattice launch --pty ..., which gives rank 0 one")
    })
}

fn wants_terminal(app: &AppSpec) -> bool {
    let name = Path::new(&app.program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_interactive = || app.args.iter().any(|argument| argument == "-i");
    PROGRAMS.contains(&name) || SHELLS.contains(&name) && is_interactive()
}

#[cfg(test)]
mod tests {
    use crate::prepared::tests::commanded;

    use super::*;

    #[test]
    fn programs_that_need_a_terminal_are_known() {
        let wants = |line: &str| {
            let command = commanded(line).unwrap();
            command.request.programs.iter().any(|program| wants_terminal(&program.app))
        };
        for line in ["bash -i", "/usr/bin/vim file", "top", "-n 2 true : -n 1 sh -i"] {
            assert!(wants(line), "{line}");
        }
        for line in ["bash -c true", "sed -i s/a/b/ file", "./vim.sh"] {
            assert!(!wants(line), "{line}");
        }
    }
}
