//! Words of other launchers (srun, mpiexec, mpirun) in lines of `lattice launch`. Words with the same meaning are translated. All other words
//! are refused, with the words to type instead.
//!
//! Only options between the name of the command and the program are examined: arguments of a program never change. Flags that this launcher has
//! under the same or a second name are aliases in the definition of the command line, not here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// Flags of other launchers, and the words to type instead.
const FLAGS: &[(&[&str], &str)] = &[
    (&["-hosts", "--hosts"], "type --host HOST:N,..., or -w NODES"),
    (&["-f"], "type --hostfile FILE"),
    (&["-env", "-genv"], "type --env NAME=VALUE, once for each variable; all others are passed on anyway"),
    (
        &["-genvall", "-envall", "-genvlist", "-envlist"],
        "leave it out: all variables are passed on; --export=LIST for some of them",
    ),
    (&["-ppn", "--ppn", "-perhost", "-npernode", "--npernode", "--ppr"], "type --tasks-per-node K"),
    (
        &["-map-by", "--map-by"],
        "type --distribution=block|cyclic[:block|cyclic], --tasks-per-node K, --tasks-per K:OBJECT or --rankfile FILE",
    ),
    (
        &["-bind-to", "--bind-to"],
        "type --cpu-bind=none|threads|cores|l3caches|numa|sockets|gpus|nics, and -c N for the CPUs of each rank",
    ),
    (&["--report-bindings", "--display", "--display-map"], "type --show-map"),
    (&["-prepend-rank"], "type --label"),
    (&["--output-filename", "-outfile-pattern"], "type --output FILE; %r in it is the rank"),
    (&["-errfile-pattern"], "type --error FILE; %r in it is the rank"),
    (&["--name"], "type --job-name NAME"),
    (&["--line-buffer"], "leave it out: ranks' output is passed on line by line, as it comes"),
    (
        &["-configfile", "--configfile", "--app", "--appfile"],
        "separate programs by a lone `:`, as in lattice launch -n 1 ./a : -n 3 ./b, or type --multi-prog FILE",
    ),
    (&["-mca", "--mca", "--gmca"], "type --env OMPI_MCA_NAME=VALUE"),
    (&["--allow-run-as-root"], "leave it out"),
    (&["--version"], "type lattice --version"),
];

/// Commands of other launchers and resource managers, and the command to type instead. `launch` and `batch` take the words that follow.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["prun", "local", "jsrun", "aprun", "orterun", "prterun", "yod", "flux run"], "launch"),
    (&["submit", "sbatch", "qsub", "bsub", "flux submit", "flux batch"], "batch"),
    (&["squeue", "qstat", "bjobs", "sprio"], "queue"),
    (&["scancel", "stop", "qdel", "bkill", "flux cancel"], "cancel"),
    (&["salloc", "allocate", "flux alloc"], "alloc create -N 1"),
    (&["sinfo", "pbsnodes", "bhosts", "flux resource"], "nodes"),
    (&["sattach", "flux job", "flux attach"], "attach"),
    (&["sacct", "flux jobs"], "launches --all"),
    (&["sstat"], "top"),
    (&["flux"], "launch --help"),
    (&["version"], "--version"),
];

/// Letters of commands of other systems that have another meaning here: the command, the letter, and the flag of the command to type instead.
const LETTERS: &[(&str, &str, &str)] = &[
    ("aprun", "-N", "--tasks-per-node"),
    ("aprun", "-d", "-c"),
    ("aprun", "-S", "--tasks-per-socket"),
    ("aprun", "-L", "-w"),
    ("jsrun", "-p", "-n"),
    ("jsrun", "-g", "--gpus-per-task"),
    ("bsub", "-W", "--time"),
    ("bsub", "-cwd", "-D"),
    ("qsub", "-N", "-J"),
];

/// Flag to type instead of the flag `word` of the command `command` of another system.
pub(super) fn instead_of_letter(command: &str, word: &str) -> Option<&'static str> {
    LETTERS.iter().find(|(name, letter, _)| *name == command && *letter == word).map(|&(_, _, flag)| flag)
}

/// Flags with one dash that have another spelling here. A number may directly follow `-np`, and srun's `-K` has a single digit directly after
/// it.
const SAME: [(&str, &str); 10] = [
    ("-np", "-n"),
    ("-help", "--help"),
    ("-K0", "-K=0"),
    ("-K1", "-K=1"),
    ("-hostfile", "--hostfile"),
    ("-machinefile", "--hostfile"),
    ("-host", "--host"),
    ("-wdir", "--chdir"),
    ("-wd", "--chdir"),
    ("-tag-output", "--label"),
];

/// Words to type instead of `flag` of another launcher. A value after `=` is ignored.
pub(super) fn instead_of_flag(flag: &str) -> Option<&'static str> {
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    find(FLAGS, name)
}

/// Flags of other launchers, each with the words to type instead.
pub(super) fn flags_of_others() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLAGS.iter().flat_map(|&(names, here)| names.iter().map(move |&name| (name, here)))
}

/// Command to type instead of the command `word` of another launcher.
pub(super) fn instead_of_command(word: &str) -> Option<&'static str> {
    find(COMMANDS, word)
}

fn find(table: &[(&[&str], &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(names, _)| names.contains(&name)).map(|&(_, here)| here)
}

/// Rewrites options among `words` that have the same meaning under another spelling. `definition` creates the command that parses them. It is
/// called only if there is a word to examine, since it takes longer than all other steps.
///
/// # Errors
/// Returns an error for words of one dash that the parser would split into letters: `-hosts a` would print the help.
pub(super) fn translate(words: &mut [OsString], definition: impl FnOnce() -> Command) -> Result<(), clap::Error> {
    if !words.iter().any(|word| is_of_interest(word)) {
        return Ok(());
    }
    let command = definition();
    let mut next = 0;
    while let Some(word) = words.get(next).filter(|word| is_option(word)) {
        if let Some(same) = translated(word) {
            words[next] = same;
        } else if let Some(word) = word.to_str()
            && (is_cut_to_letters(word) || long_flag(word, &command).is_some())
        {
            return Err(unknown(word, &command));
        }
        next += 1 + usize::from(takes_next(&words[next], &command));
    }
    Ok(())
}

/// True for a word of one dash and more than one letter.
fn is_of_interest(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.len() > 2 && bytes[0] == b'-' && bytes[1].is_ascii_alphabetic()
}

pub(super) fn is_option(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-") && word != "-" && word != "--"
}

fn translated(word: &OsStr) -> Option<OsString> {
    let word = word.to_str()?;
    SAME.iter().find_map(|&(there, here)| {
        let value = word.strip_prefix(there)?;
        let is_value = value.is_empty() || value.starts_with('=') || value.bytes().all(|byte| byte.is_ascii_digit());
        is_value.then(|| format!("{here}{value}").into())
    })
}

/// True if the parser would read `word`, a flag of another launcher, as a flag of one letter and its value, or as the help.
fn is_cut_to_letters(word: &str) -> bool {
    is_of_interest(word.as_ref()) && (instead_of_flag(word).is_some() || word.starts_with("-h"))
}

/// The long flag that was typed with one dash. The parser would read `-output f` as a file `utput`.
fn long_flag(word: &str, command: &Command) -> Option<String> {
    let name = word.strip_prefix('-')?.split('=').next().filter(|name| name.len() > 2)?;
    command.get_arguments().any(|arg| arg.get_long() == Some(name)).then(|| format!("--{name}"))
}

/// True if the value of the option `word` is the next word.
pub(super) fn takes_next(word: &OsStr, command: &Command) -> bool {
    let Some(word) = word.to_str() else { return false };
    let takes_value = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    let mut args = command.get_arguments();
    if let Some(name) = word.strip_prefix("--") {
        let is_named = |arg: &Arg| arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&name));
        let has_alias = |arg: &Arg| arg.get_all_aliases().is_some_and(|names| names.contains(&name));
        return args.any(|arg| (is_named(arg) || has_alias(arg)) && takes_value(arg));
    }
    let args: Vec<&Arg> = args.collect();
    let mut letters = word.chars().skip(1).peekable();
    while let Some(letter) = letters.next() {
        match args.iter().find(|arg| arg.get_short() == Some(letter)) {
            Some(arg) if takes_value(arg) => return letters.peek().is_none(),
            Some(_) => {}
            None => return false,
        }
    }
    false
}

fn unknown(word: &str, command: &Command) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
    error.insert(ContextKind::InvalidArg, ContextValue::String(word.to_owned()));
    if let Some(flag) = long_flag(word, command) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(command.clone().render_usage()));
    error
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn launch() -> Command {
        let mut cli = Cli::command();
        cli.build();
        cli.find_subcommand("launch").unwrap().clone()
    }

    #[test]
    fn spellings_of_mpiexec_are_read_as_ours() {
        let check = |line: &str, expected: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            translate(&mut words, launch).unwrap();
            assert_eq!(words.join(OsStr::new(" ")), expected, "{line}");
        };
        check("-np 4 ./a", "-n 4 ./a");
        check("-np4 ./a", "-n4 ./a");
        check("-np=4 ./a", "-n=4 ./a");
        check("-l -np 4 ./a", "-l -n 4 ./a");
        check("-host a -wdir=/tmp ./a", "--host a --chdir=/tmp ./a");
        check("-machinefile f ./a", "--hostfile f ./a");
        check("-help", "--help");
        check("-K0 -np 4 ./a -K0", "-K=0 -n 4 ./a -K0");
        check("-K -np 4 ./a -K1", "-K -n 4 ./a -K1");
    }

    #[test]
    fn words_of_a_program_and_values_of_flags_stay_as_they_are() {
        for line in [
            "./a -np 4 -hosts b -help",
            "-n 2 ./a -np 4",
            "-n2 -q ./a -help",
            "-qn 2 ./a -hosts",
            "--label ./a -hosts",
            "--output -np ./a",
            "--ntasks-per-node 2 ./a -np",
            "-- -np 4",
        ] {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            translate(&mut words, launch).unwrap();
            assert_eq!(words.join(OsStr::new(" ")), line);
        }
    }

    #[test]
    fn what_would_print_the_help_or_a_node_named_dir_is_refused_by_its_name() {
        for word in
            ["-hosts", "-hydra-thing", "-genv", "-ppn", "-map-by=a", "-output", "-label", "-export=ALL", "-timeout"]
        {
            let mut words = vec![OsString::from("-n"), "2".into(), word.into(), "x".into()];
            let error = translate(&mut words, launch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownArgument, "{word}");
            assert!(error.to_string().contains(&format!("unexpected argument '{word}' found")), "{error}");
        }
    }

    #[test]
    fn no_flag_of_ours_is_taken_for_one_of_others() {
        let launch = launch();
        for (names, _) in FLAGS {
            for name in *names {
                let long = name.strip_prefix("--");
                let short = name.strip_prefix('-').filter(|rest| rest.len() == 1);
                let ours = launch.get_arguments().any(|arg| {
                    long.is_some_and(|long| arg.get_long() == Some(long))
                        || short.is_some_and(|short| arg.get_short() == short.chars().next())
                });
                assert!(!ours, "{name}");
            }
        }
    }

    #[test]
    fn what_to_type_instead_exists() {
        let mut cli = Cli::command();
        cli.build();
        let launch = launch();
        for (_, command) in COMMANDS {
            let first = command.split(' ').next().unwrap();
            assert!(first == "--version" || cli.find_subcommand(first).is_some(), "{command}");
        }
        for (names, tip) in FLAGS {
            for flag in tip.split([' ', ',', '=', ';', ':']).filter_map(|word| word.strip_prefix("--")) {
                let mut known = launch.get_arguments().chain(cli.get_arguments());
                assert!(known.any(|arg| arg.get_long() == Some(flag)), "{names:?}: --{flag}");
            }
        }
    }
}
