//! One letter has one meaning in all commands, and all times have the same forms.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::time::Duration;

use lattice_console::values;
use lattice_dialects::slurm_time;

use super::*;

/// All commands, with the words that name them.
fn commands() -> Vec<(String, clap::Command)> {
    fn collect(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        found.push((path.to_owned(), command.clone()));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            collect(below, &format!("{path} {}", below.get_name()), found);
        }
    }
    let mut cli = Cli::command();
    cli.build();
    let mut found = Vec::new();
    collect(&cli, "lattice", &mut found);
    found
}

/// The table of `lattice srun` has exceptions of its own, which a test next to it lists.
#[test]
fn a_letter_has_one_meaning_in_all_commands() {
    let mut meanings: BTreeMap<char, (String, String)> = BTreeMap::new();
    let mut checked = 0;
    for (path, command) in commands() {
        for arg in command.get_arguments() {
            let (Some(letter), long) = (arg.get_short(), arg.get_long().unwrap_or_default().to_owned()) else {
                continue;
            };
            checked += 1;
            let (known, first) = meanings.entry(letter).or_insert_with(|| (long.clone(), path.clone()));
            assert_eq!(*known, long, "-{letter} of {path}, and of {first}");
        }
    }
    assert!(checked > 100, "{checked} letters");
}

/// A letter is a switch in all commands, or has a value in all. A value that only follows `=` is none here.
#[test]
fn a_letter_takes_a_value_in_all_commands_or_in_none() {
    let mut kinds: BTreeMap<char, (bool, String)> = BTreeMap::new();
    for (path, command) in commands() {
        for (letter, arg) in command.get_arguments().filter_map(|arg| Some((arg.get_short()?, arg))) {
            let takes = arg.get_action().takes_values() && !arg.is_require_equals_set();
            let (known, first) = kinds.entry(letter).or_insert_with(|| (takes, path.clone()));
            assert_eq!(*known, takes, "-{letter} of {path}, and of {first}");
        }
    }
}

#[test]
fn each_flag_with_a_time_names_its_unit_and_takes_all_forms() {
    let mut checked = 0;
    for (path, command) in commands() {
        let of_time = |arg: &&clap::Arg| arg.get_value_parser().type_id() == TypeId::of::<Duration>();
        for arg in command.get_arguments().filter(of_time) {
            checked += 1;
            let long = arg.get_long().unwrap();
            let name = arg.get_value_names().unwrap()[0].to_string();
            let expected = if long == "time" { slurm_time::VALUE_NAME } else { values::TIME };
            assert_eq!(name, expected, "{path} --{long}");
            let forms = ["30", "30s", "1500ms", "2m", "1h", "1h30m"];
            let of_srun: &[&str] = if long == "time" { &["10:30", "1:10:30", "1-0"] } else { &[] };
            let is_read = |form: &str| {
                let arg = clap::Arg::new("time").value_parser(arg.get_value_parser().clone());
                clap::Command::new("lattice").arg(arg).try_get_matches_from(["lattice", form]).is_ok()
            };
            for form in forms.iter().chain(of_srun) {
                assert!(is_read(form), "{path} --{long} {form}");
            }
            assert!(!is_read(if long == "time" { "10:xx" } else { "10:30" }), "{path} --{long}");
        }
    }
    assert!(checked >= 13, "{checked} flags with a time");
}

/// A plain number is seconds, except for `--time` of srun and sbatch.
#[test]
fn a_plain_number_is_seconds_and_for_the_flags_of_srun_minutes() {
    let args = launch("--wait 30 --stuck-after 30 --signal USR1@30 --timeout 90 ./a");
    assert_eq!((args.time.wait, args.time.stuck_after), (Some(Duration::from_secs(30)), Some(Duration::from_secs(30))));
    assert_eq!(args.time.signal.map(|signal| signal.ahead), Some(Duration::from_secs(30)));
    assert_eq!(launch("--time 30 ./a").time.time, Some(Duration::from_secs(1800)));
    let check = |line: &str, expected: &str| match parsed(line) {
        Ok(cli) => assert!(format!("{:?}", cli.command).contains(expected), "{line}: {:?}", cli.command),
        Err(error) => panic!("{line}: {error}"),
    };
    check("lattice set ping lattice://7/0 --timeout 7", "timeout: 7s");
    check("lattice set ping lattice://7/0 --timeout 500ms", "timeout: 500ms");
    check("lattice top --interval 500ms", "interval: 500ms");
    check("lattice batch --time 30 job.sh", "time: Some(1800s)");
    refused("lattice top --interval 50ms", "the shortest time is 100 ms");
    refused("lattice set ping lattice://7/0 --timeout 2d", "the longest time is 1 d");
    refused("lattice set ping lattice://7/0 --timeout 0.5", "not a duration");
}

#[test]
fn a_letter_with_another_meaning_there_is_answered_with_the_long_flag() {
    for (line, flag) in [
        ("lattice exec -t node0 -- bash", "--pty"),
        ("lattice batch -W job.sh", "--wait"),
        ("lattice cancel -u root", "--user"),
        ("lattice set ping -c 3 lattice://7/0", "--count"),
    ] {
        refused(line, &format!("tip: type {flag}"));
    }
}
