//! PMI by hand: bash functions with which a script is a rank that sends exactly the requests of a test.

use lattice_tests::Command;

/// Functions that send a line, receive a line into `$reply`, or do both. The functions with the suffix 2 do the same with
/// PMI-2 messages.
const FUNCTIONS: &str = r#"
say() { printf '%s\n' "$1" >&$PMI_FD; }
hear() { IFS= read -r reply <&$PMI_FD; }
ask() { say "$1"; hear; }
say2() { printf '%6d%s' ${#1} "$1" >&$PMI_FD; }
hear2() { IFS= read -r -N 6 length <&$PMI_FD; IFS= read -r -N $length reply <&$PMI_FD; }
ask2() { say2 "$1"; hear2; }
init() { ask 'cmd=init pmi_version=1 pmi_subversion=1'; }
init2() { ask 'cmd=init pmi_version=2 pmi_subversion=0'; }
put() { ask "cmd=put key=k$PMI_RANK value=v"; }
barrier() { ask cmd=barrier_in; }
finalize() { ask cmd=finalize; }
forever() { exec sleep 1000; }
"#;

/// Adds a bash script that uses these functions as the program.
pub(crate) fn script(command: Command, script: &str) -> Command {
    command.bash(&format!("{FUNCTIONS}{script}"))
}
