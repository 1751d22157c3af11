//! Other commands: lines that are accepted, and lines that are refused with the possible values.

use super::*;

/// Checks that a line is accepted, and that its command, in its debug form, contains all `parts`.
fn taken(line: &str, parts: &[&str]) {
    let cli = parsed(&format!("lattice {line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
    let command = format!("{:?}", cli.command);
    for part in parts {
        assert!(command.contains(part), "{line}: {part} is not in {command}");
    }
}

fn not_taken(line: &str, expected: &str) {
    refused(&format!("lattice {line}"), expected);
}

#[test]
fn allocations_are_made_of_a_number_or_a_list_of_nodes() {
    taken("alloc create -N 2", &["count: Some(2)", "list: None", "requeue: Never", "wait: false"]);
    taken("alloc create --nodes=2 --wait", &["count: Some(2)", "wait: true"]);
    taken("alloc create -w node[0-3,7] --requeue on-any-failure", &["list: Some(\"node[0-3,7]\")", "OnAnyFailure"]);
    taken("alloc create -N 1 --uid 7 --json", &["uid: Some(7)", "json: true"]);
    not_taken("alloc create", "required arguments were not provided:\n  <--nodes <N>|--nodelist <NODES>>");
    not_taken("alloc create -N 1 -w node0", "the argument '--nodes <N>' cannot be used with '--nodelist <NODES>'");
    not_taken("alloc create -N 0", "invalid value '0' for '--nodes <N>': a whole number from 1 to");
    not_taken("alloc create -w node[1-0]", "\"1-0\" in \"node[1-0]\" is no range");
    not_taken("alloc create -N 1 --requeue always", "[possible values: never, on-node-failure, on-any-failure]");
    not_taken("alloc create -n 1", "tip: type -N for a number of nodes");
}

#[test]
fn a_release_names_its_allocation() {
    taken("alloc show", &["id: None"]);
    taken("alloc show 7f3k", &["id: Some(\"7f3k\")"]);
    taken("alloc release 7f3k", &["id: \"7f3k\""]);
    taken("alloc list --all --json", &["all: true", "json: true"]);
    not_taken("alloc release", "required arguments were not provided:\n  <ID>");
    not_taken("alloc", "Usage: lattice alloc [OPTIONS] <COMMAND>");
}

#[test]
fn kinds_of_nodes_are_shown_in_one_form() {
    taken("nodes --topology", &["topology: Some(None)", "format: None"]);
    taken("nodes --topology node[0-1] --format svg", &["topology: Some(Some(\"node[0-1]\"))", "format: Some(Svg)"]);
    not_taken("nodes --format xml", "required arguments were not provided:\n  --topology");
    not_taken("nodes --topology --json --format xml", "cannot be used with");
    not_taken("nodes --topology node[", "has a bracket without its partner");
}

#[test]
fn nodes_are_drained_for_a_reason() {
    taken("nodes", &["command: None"]);
    taken("nodes drain node[3-4] --reason memory", &["Drain", "nodes: \"node[3-4]\"", "reason: \"memory\""]);
    taken("nodes resume node3", &["Resume", "nodes: \"node3\""]);
    not_taken("nodes drain node3", "required arguments were not provided:\n  --reason <TEXT>");
    not_taken("nodes drain --reason x", "required arguments were not provided:\n  <NODES>");
    not_taken("nodes drain node[ --reason x", "has a bracket without its partner");
    not_taken("nodes --json drain node3 --reason x", "cannot be used with");
}

#[test]
fn signals_are_sent_to_all_ranks_or_to_some() {
    taken("signal k3jq USR1", &["signal: SIGUSR1", "ranks: None"]);
    taken("signal k3jq SIGSTOP --ranks 0-3,8", &["signal: SIGSTOP", "ranks: Some("]);
    taken("signal k3jq 9", &["signal: SIGKILL"]);
    let expected = "no signal; a name such as TERM or SIGUSR1, or a number from 1 to 31, is";
    for wrong in ["NONE", "0", "32", "SIGSIGUSR1", "1.5"] {
        not_taken(&format!("signal k3jq {wrong}"), &format!("invalid value '{wrong}' for '<SIGNAL>': {expected}"));
    }
    not_taken("signal k3jq", "required arguments were not provided:\n  <SIGNAL>");
    not_taken("signal k3jq TERM --ranks 3-1", "invalid value '3-1' for '--ranks <LIST>'");
}

#[test]
fn a_launch_is_followed_ended_and_looked_at_by_its_id() {
    taken("attach k3jq -l --timestamp", &["label: true", "timestamp: true"]);
    taken("attach k3jq --json", &["json: true"]);
    for name in ["cancel", "abort", "kill"] {
        taken(&format!("{name} k3jq 7f3k"), &["Cancel", "ids: [\"k3jq\", \"7f3k\"]", "reason: \"lattice cancel\""]);
    }
    taken("cancel k3jq --reason enough", &["reason: \"enough\""]);
    not_taken("cancel", "required arguments were not provided:\n  <ID>...");
    taken("status k3jq --json", &["Status", "json: true"]);
    taken("proctable k3jq --api unix:/x", &["Proctable", "unix:/x"]);
    taken("launches --all", &["all: true"]);
    not_taken("attach k3jq --json -l", "cannot be used with");
    for command in ["attach", "status", "proctable"] {
        not_taken(command, "required arguments were not provided:\n  <LAUNCH>");
    }
    not_taken("status one two", "unexpected argument 'two' found");
}

#[test]
fn fabric_credentials_are_listed_examined_and_cleaned() {
    taken("cxi list", &["List"]);
    taken("cxi doctor --json", &["Doctor", "json: true"]);
    taken("cxi clean --dry-run --gone node[3-4]", &["dry_run: true", "gone: Some(\"node[3-4]\")"]);
    not_taken("cxi clean --gone", "a value is required for '--gone <NODES>'");
    not_taken("cxi repair", "unrecognized subcommand 'repair'");
}

#[test]
fn probes_of_pmi_have_their_bounds() {
    taken("pmi barrier", &["Barrier { count: 10 }", "method: Auto"]);
    taken("pmi exchange --count 3 --size 8 --method pmi2", &["Exchange { count: 3, size: 8 }", "method: Pmi2"]);
    taken("pmi get PMI_process_mapping size", &["keys: [\"PMI_process_mapping\", \"size\"]"]);
    not_taken("pmi barrier --count 0", "a whole number from 1 to 4294967295 is possible");
    not_taken("pmi get", "required arguments were not provided:\n  <KEY>...");
    not_taken("pmi barrier --method pmi3", "[possible values: auto, pmi1, pmi2, pmix, lib, lib2]");
}

#[test]
fn nodes_are_started_by_a_way_and_with_hosts_that_are_named_once() {
    taken("start", &["via: None", "command: []"]);
    taken("start --via slurm -- lattice launch -n 8 ./a", &["via: Some(Slurm)", "\"launch\", \"-n\", \"8\""]);
    taken("start --via ssh --host a:2,b make test", &["via: Some(Ssh)", "HostLine", "[\"make\", \"test\"]"]);
    taken("launch --via none true", &["via: Some(None)"]);
    not_taken("start --via ssh -w a --hostfile f", "cannot be used with");
    not_taken("launch --via slrum true", "\"slrum\" is none of slurm, pbs, lsf, sge, flux, k8s, ssh, none");
    taken("launch --start-with rsh -H a,b true", &["start_with: Some(Command([\"rsh\", \"{host}\", \"{command}\"]))"]);
    taken("start --start-with enter -w a -- true", &["Command([\"enter\", \"{host}\", \"{command}\"])"]);
    not_taken("launch --via ssh --start-with rsh true", "'--via <HOW>' cannot be used with '--start-with <COMMAND>'");
    not_taken("launch --start-with= true", "the command is empty; it starts a process on a host");
    not_taken("launch --via ssh", "required arguments were not provided");
}

#[test]
fn a_dev_cluster_has_one_node_at_least_and_fits_its_network() {
    taken("dev-cluster", &["nodes: 4", "loopback: false", "fabric: false", "command: []"]);
    taken("dev-cluster -N 250 --loopback -- lattice launch -n 8 ./a", &["nodes: 250", "\"launch\", \"-n\", \"8\""]);
    taken(
        "dev-cluster --fabric --fabric-faults rules make test",
        &["fabric: true", "\"rules\"", "[\"make\", \"test\"]"],
    );
    not_taken("dev-cluster -N 0", "invalid value '0' for '--nodes <N>': 0 is not in 1..=250");
    not_taken("dev-cluster -N 251", "251 is not in 1..=250");
    not_taken("dev-cluster -N -1", "-1 is not in 1..=250");
    not_taken("dev-cluster --fabric-faults rules", "required arguments were not provided:\n  --fabric");
}

#[test]
fn completions_and_man_pages_are_of_what_there_is() {
    taken("completions bash", &["Bash"]);
    taken("man alloc create", &["[\"alloc\", \"create\"]"]);
    not_taken("completions tcsh", "[possible values: bash, elvish, fish, powershell, zsh]");
}

/// Scripts read `--json`. Every command with output must have it, and every command must have `--api`.
#[test]
fn every_command_about_a_cluster_takes_a_server_and_prints_json() {
    let mut cli = Cli::command();
    cli.build();
    for path in [
        "alloc create",
        "alloc list",
        "alloc show",
        "alloc release",
        "nodes",
        "nodes drain",
        "nodes resume",
        "launches",
        "status",
        "attach",
        "signal",
        "cancel",
        "set list",
        "proctable",
        "cxi list",
        "cxi doctor",
        "cxi clean",
        "launch",
    ] {
        let command = path.split(' ').fold(&cli, |command, word| command.find_subcommand(word).unwrap());
        for flag in ["api", "json", "quiet", "verbose"] {
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(flag)), "lattice {path} has no --{flag}");
        }
    }
}

/// Every flag and command must have a help text.
#[test]
fn every_flag_and_command_is_explained_in_the_help() {
    fn check(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some_and(|about| !about.to_string().is_empty()), "{path}");
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some_and(|help| !help.to_string().is_empty()), "{path} {}", arg.get_id());
            let count = |names: Option<Vec<&str>>| names.unwrap_or_default().len();
            assert_eq!(count(arg.get_all_aliases()), count(arg.get_visible_aliases()), "{path} {}", arg.get_id());
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            check(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    let mut cli = Cli::command();
    cli.build();
    check(&cli, "lattice");
}
