//! Tips for a command line that is not understood: the nearest known word, or the word to type instead of a word of another launcher. Tips that
//! do not help are omitted.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lattice_commands::args::instead_of_sbatch_flag;
use lattice_console::formatting::typed_line;
use lattice_console::signal_value;
use lattice_dialects::SEPARATOR;

use super::other_launchers::{flags_of_others, instead_of_command, instead_of_flag, instead_of_letter};

/// Flags of `lattice launch` for numbers and nodes. A line of `lattice exec` with one of them is probably meant as a launch.
const OF_LAUNCH: [&str; 10] =
    ["-n", "--ntasks", "--np", "-N", "--nodes", "-c", "--cpus-per-task", "--tasks-per-node", "-w", "--nodelist"];

/// Commands that call an API server. The flag for its address follows the command.
const OF_SERVERS: [&str; 16] = [
    "alloc",
    "attach",
    "batch",
    "cancel",
    "cxi",
    "debug",
    "exec",
    "launches",
    "nodes",
    "proctable",
    "queue",
    "set",
    "signal",
    "stacks",
    "status",
    "top",
];

/// Letters of other programs that have another meaning here, or none: the words of the command, the letter, and the flag to type.
const LONG_ONLY: [(&[&str], &str, &str); 4] = [
    (&["exec"], "-t", "--pty"),
    (&["batch"], "-W", "--wait"),
    (&["cancel", "abort", "kill"], "-u", "--user"),
    (&["set", "ping"], "-c", "--count"),
];

/// Command of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// `lattice launch`, or a program of a launch after a `:`.
    Launch,
    /// Another command, or none.
    Other,
}

/// The same error with useful tips. `words` is the whole command line, with the name that this program was called by.
pub(super) fn improved(mut error: clap::Error, about: About, words: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            // clap's tip to put the flag after `--` would make it a program.
            error.remove(ContextKind::Suggested);
            let typed = text(&error, ContextKind::InvalidArg);
            let typed = typed.split('=').next().unwrap_or_default().to_owned();
            if let Some(tip) = flag_tip(&typed, about, words) {
                error.remove(ContextKind::SuggestedArg);
                suggest(&mut error, &tip);
            } else if !is_near(&typed, &text(&error, ContextKind::SuggestedArg)) {
                error.remove(ContextKind::SuggestedArg);
                if let Some((flag, instead)) = near_flag_of_others(&typed).filter(|_| about == About::Launch) {
                    suggest(&mut error, &format!("{flag}, of other launchers, is not here: {instead}"));
                }
            }
        }
        ErrorKind::InvalidSubcommand if about == About::Other => {
            error.remove(ContextKind::Suggested);
            let typed = text(&error, ContextKind::InvalidSubcommand);
            let is_first = words.iter().skip(1).find(|word| !is_option(word)).is_some_and(|word| *word == *typed);
            if let Some(tip) = is_first.then(|| command_tip(&typed, words)).flatten() {
                error.remove(ContextKind::SuggestedSubcommand);
                suggest(&mut error, &tip);
            } else {
                keep_near_commands(&mut error, &typed);
            }
        }
        // `lattice signal TERM ID`, in the order of kill(1).
        ErrorKind::ValueValidation if about == About::Other => {
            if let [_, command, name, id] = words
                && command == "signal"
                && let Some(tip) = signal_line(&name.to_string_lossy(), std::slice::from_ref(id))
            {
                suggest(&mut error, &tip);
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = text(&error, ContextKind::InvalidArg);
            if let Some(tip) = missing_tip(&missing, about, words) {
                suggest(&mut error, &tip);
            }
        }
        _ => {}
    }
    error
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    error.get(kind).map(ToString::to_string).unwrap_or_default()
}

fn suggest(error: &mut clap::Error, tip: &str) {
    let mut styled = StyledStr::new();
    // Writing to a text cannot fail.
    let _ = styled.write_str(tip);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![styled]));
}

fn flag_tip(typed: &str, about: About, words: &[OsString]) -> Option<String> {
    let first = words.get(1)?;
    match about {
        About::Launch => instead_of_flag(typed).map(str::to_owned),
        // `lattice -n 4 ./a.out`: no command at all.
        About::Other if is_option(first) && words.iter().skip(1).any(|word| !is_option(word)) => {
            // `lattice --api URL launches`: the flags must follow the command.
            let command = words.iter().position(|word| OF_SERVERS.iter().any(|command| word == command));
            Some(format!(
                "did you mean: {}",
                match command {
                    Some(at) => typed_line(&words[at].to_string_lossy(), &[&words[at + 1..], &words[1..at]].concat()),
                    None => typed_line("launch", &words[1..]),
                }
            ))
        }
        About::Other if long_only(first, typed).is_some() => long_only(first, typed).map(|flag| format!("type {flag}")),
        About::Other if first == "exec" && OF_LAUNCH.contains(&typed) => {
            Some(format!("did you mean: {}", typed_line("launch", &words[2..])))
        }
        About::Other if ["kill", "abort", "signal"].iter().any(|command| first == command) => {
            signal_line(typed, &words[2..])
        }
        About::Other if first == "queue" && ["-u", "--user", "--me"].contains(&typed) => {
            Some("type lattice queue alone, which shows your jobs, and an administrator those of all users".to_owned())
        }
        About::Other if first == "batch" => instead_of_sbatch_flag(typed).map(str::to_owned),
        About::Other if typed == "-n" && ["dev-cluster", "alloc"].iter().any(|command| first == command) => {
            Some("type -N for a number of nodes".to_owned())
        }
        // `lattice start` only prepares launches; flux start and similar commands run programs.
        About::Other if ["-n", "--ntasks", "--np"].contains(&typed) && first == "start" => {
            Some(format!("did you mean: {}", typed_line("launch", &words[2..])))
        }
        About::Other => None,
    }
}

/// Flag of the command `command` for a letter that only other programs have.
fn long_only(command: &OsStr, letter: &str) -> Option<&'static str> {
    let is_meant = |(commands, typed, _): &&(&[&str], &str, &str)| {
        *typed == letter && commands.iter().any(|name| command == *name)
    };
    LONG_ONLY.iter().find(is_meant).map(|&(_, _, flag)| flag)
}

/// Line of `lattice signal` for words of kill(1): `-9 ID`, `-s TERM ID`, `-TERM ID`.
fn signal_line(typed: &str, words: &[OsString]) -> Option<String> {
    let names = words.iter().filter(|word| !is_option(word));
    let (name, ids): (String, Vec<_>) = match typed.trim_start_matches('-') {
        "s" | "signal" => {
            let [name, ids @ ..] = &names.collect::<Vec<_>>()[..] else { return None };
            (name.to_string_lossy().into_owned(), ids.to_vec())
        }
        name => (name.to_owned(), names.collect()),
    };
    signal_value::parse(&name).ok()?;
    let [id] = ids[..] else { return None };
    Some(format!("did you mean: {}", typed_line("signal", &[id.clone(), name.into()])))
}

/// Tip for a missing word: a flag that another flag needs, or the end of the line.
fn missing_tip(missing: &str, about: About, words: &[OsString]) -> Option<String> {
    if missing.starts_with("--") {
        return Some(format!("type {missing} beside it"));
    }
    let position = words.iter().skip(1).position(|word| !is_option(word))? + 1;
    let (command, rest) = (words[position].to_str()?, &words[position + 1..]);
    let more = |words: &[&str]| rest.iter().cloned().chain(words.iter().map(OsString::from)).collect::<Vec<_>>();
    match command {
        _ if about == About::Launch && rest.iter().any(|word| word == SEPARATOR) => {
            Some("a : stands between two programs, as in lattice launch -n 1 ./a.out : -n 2 ./b.out".to_owned())
        }
        _ if about == About::Launch => {
            Some(format!("end the line with a program: {}", typed_line("launch", &more(&["./a.out"]))))
        }
        "exec" => Some(format!("type -- before the command: {}", exec_line(rest))),
        "alloc" if rest.iter().any(|word| word == "create") => {
            Some(format!("did you mean: {}", typed_line("alloc", &more(&["-N", "1"]))))
        }
        _ => None,
    }
}

/// Line of `lattice exec` with a `--` between nodes and command.
fn exec_line(words: &[OsString]) -> String {
    let [nodes, end, command] = ["NODES", "--", "COMMAND"].map(OsString::from);
    let words = match words {
        [.., last] if *last == end => [words, &[command]].concat(),
        _ if words.iter().any(|word| is_option(word)) => vec![nodes, end, command],
        [only] if is_program(&only.to_string_lossy()) => vec![nodes, end, only.clone()],
        [only] => vec![only.clone(), end, command],
        [first, command @ ..] => [&[first.clone(), end], command].concat(),
        [] => vec![nodes, end, command],
    };
    typed_line("exec", &words)
}

/// Tip with the line to type instead of an unknown command.
fn command_tip(typed: &str, words: &[OsString]) -> Option<String> {
    let position = words.iter().position(|word| *word == *typed)?;
    // Commands of Flux have two words.
    let both = words.get(position + 1).map(|next| format!("{typed} {}", next.to_string_lossy()));
    let (instead, rest) = match both.as_deref().and_then(instead_of_command) {
        Some(command) => (Some(command), &words[position + 2..]),
        None => (instead_of_command(typed), &words[position + 1..]),
    };
    match instead {
        // These commands take the words that follow.
        Some(command @ ("launch" | "batch")) => {
            Some(format!("did you mean: {}", typed_line(command, &own_flags(typed, rest))))
        }
        // These take ids, as their models do.
        Some(command @ ("cancel" | "attach")) if !rest.iter().any(|word| is_option(word)) => {
            // `flux job attach ID`.
            let ids: Vec<OsString> = rest.iter().filter(|word| *word != command).cloned().collect();
            Some(format!("did you mean: {}", typed_line(command, &ids)))
        }
        // The words that follow set the number of nodes.
        Some("alloc create -N 1") if !rest.is_empty() => {
            Some(format!("did you mean: {}", typed_line("alloc create", rest)))
        }
        Some(command) => Some(format!("did you mean: {}", typed_line(command, &[]))),
        None if is_program(typed) => Some(format!("did you mean: {}", typed_line("launch", &words[position..]))),
        None => None,
    }
}

/// Words after the command `typed` of another system, with the flags of the command here, up to the program.
fn own_flags(typed: &str, words: &[OsString]) -> Vec<OsString> {
    let mut is_value = false;
    let mut is_over = false;
    let own = |word: &OsString| {
        is_over |= !is_option(word) && !is_value;
        is_value = is_option(word);
        let flag = word.to_str().filter(|_| !is_over).and_then(|word| instead_of_letter(typed, word));
        flag.map_or_else(|| word.clone(), OsString::from)
    };
    words.iter().map(own).collect()
}

fn is_option(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-")
}

/// True for a path, or the name of a file in `PATH`.
fn is_program(word: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    word.contains('/') || std::env::split_paths(&path).any(|directory| directory.join(word).is_file())
}

fn keep_near_commands(error: &mut clap::Error, typed: &str) {
    let Some(ContextValue::Strings(suggested)) = error.remove(ContextKind::SuggestedSubcommand) else { return };
    let near: Vec<String> = suggested.into_iter().filter(|command| is_near(typed, command)).collect();
    if !near.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
}

/// The flag of another launcher that is nearest to an unknown word, and the words to type instead.
fn near_flag_of_others(typed: &str) -> Option<(&'static str, &'static str)> {
    let near = flags_of_others().filter(|(flag, _)| flag.len() > 3 && typed.len() > 3 && is_near(typed, flag));
    near.max_by_key(|(flag, _)| flag.starts_with("--") == typed.starts_with("--"))
}

/// True if `typed` may mean `known`: it has one typing mistake (more in a long word), is the beginning of `known`, or lacks letters of `known`.
fn is_near(typed: &str, known: &str) -> bool {
    let [typed, known] = [typed, known].map(|word| word.trim_start_matches('-'));
    let slips = strsim::damerau_levenshtein(typed, known);
    slips <= 1 + typed.chars().count() / 8
        || (typed.len() >= 4 && (known.starts_with(typed) || is_shortened(typed, known)))
}

/// True if `typed` has the letters of `known` in order, except two of them.
fn is_shortened(typed: &str, known: &str) -> bool {
    let mut letters = known.chars();
    let is_begun = typed.chars().next() == known.chars().next();
    is_begun && known.len() == typed.len() + 2 && typed.chars().all(|letter| letters.any(|next| next == letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        for (typed, known) in [
            ("--lable", "--label"),
            ("--tiemout", "--timeout"),
            ("--cpubind", "--cpu-bind"),
            ("luanch", "launch"),
            ("lnch", "launch"),
            ("stts", "status"),
        ] {
            assert!(is_near(typed, known), "{typed}");
        }
        for (typed, known) in [
            ("--export", "--pmi-port"),
            ("--wait", "--api"),
            ("kill", "pki"),
            ("--foo", ""),
            ("lach", "attach"),
            ("--out", "--output"),
        ] {
            assert!(!is_near(typed, known), "{typed}");
        }
    }

    #[test]
    fn what_is_missing_at_the_end_of_a_line_is_told_with_the_line() {
        let check = |about, words: &str, expected: Option<&str>| {
            let words: Vec<OsString> = ["lattice"].into_iter().chain(words.split(' ')).map(OsString::from).collect();
            assert_eq!(missing_tip("<PROGRAM>", about, &words).as_deref(), expected, "{words:?}");
        };
        let program = "end the line with a program: lattice launch --np 4 ./a.out";
        check(About::Launch, "launch --np 4", Some(program));
        for (words, line) in [
            ("exec n0 uptime -p", "NODES -- COMMAND"),
            ("exec n0 /bin/date now", "n0 -- /bin/date now"),
            ("exec /bin/date", "NODES -- /bin/date"),
            ("exec n0", "n0 -- COMMAND"),
            ("exec n0 --", "n0 -- COMMAND"),
            ("exec", "NODES -- COMMAND"),
        ] {
            check(About::Other, words, Some(&format!("type -- before the command: lattice exec {line}")));
        }
        check(About::Other, "alloc create", Some("did you mean: lattice alloc create -N 1"));
        check(About::Other, "-q alloc create --wait", Some("did you mean: lattice alloc create --wait -N 1"));
        check(About::Other, "signal", None);
        let separated = "a : stands between two programs, as in lattice launch -n 1 ./a.out : -n 2 ./b.out";
        check(About::Launch, "launch -n 1 : echo a", Some(separated));
        let words = ["lattice", "launch", "--send-libs", "./a"].map(OsString::from);
        let beside = missing_tip("--bcast[=<PATH>]", About::Launch, &words);
        assert_eq!(beside.as_deref(), Some("type --bcast[=<PATH>] beside it"));
    }

    /// Regression test: where Slurm is installed, the tip for `lattice sacct` was `lattice launch sacct`.
    #[test]
    fn commands_of_resource_managers_are_answered_with_ours() {
        for (words, expected) in [
            ("sacct", "lattice launches --all"),
            ("sstat 7", "lattice top"),
            ("flux run -n 4 ./a", "lattice launch -n 4 ./a"),
            ("flux alloc -N 4", "lattice alloc create -N 4"),
            ("flux jobs", "lattice launches --all"),
            ("flux", "lattice launch --help"),
            ("jsrun -n 4 ./a", "lattice launch -n 4 ./a"),
            ("aprun -n 4 ./a", "lattice launch -n 4 ./a"),
            ("aprun -n 8 -N 4 -d 2 ./a -N 3", "lattice launch -n 8 --tasks-per-node 4 -c 2 ./a -N 3"),
            ("jsrun -p 8 -g 1 ./a -p 2", "lattice launch -n 8 --gpus-per-task 1 ./a -p 2"),
            ("prun -n 4 ./a", "lattice launch -n 4 ./a"),
            ("bsub -W 30 -J x job.sh", "lattice batch --time 30 -J x job.sh"),
            ("qsub -N x job.sh", "lattice batch -J x job.sh"),
            ("sbatch -N 2 job.sh", "lattice batch -N 2 job.sh"),
            ("sinfo -N", "lattice nodes"),
            ("scancel 7f3k 9abc", "lattice cancel 7f3k 9abc"),
            ("scancel", "lattice cancel"),
            ("flux cancel 7f3k", "lattice cancel 7f3k"),
            ("flux job attach 7f3k", "lattice attach 7f3k"),
            ("scancel -u root", "lattice cancel"),
            ("qsub job.sh", "lattice batch job.sh"),
            ("salloc", "lattice alloc create -N 1"),
            ("squeue --me", "lattice queue"),
        ] {
            let words: Vec<OsString> = ["lattice"].into_iter().chain(words.split(' ')).map(OsString::from).collect();
            let tip = command_tip(&words[1].to_string_lossy(), &words);
            assert_eq!(tip, Some(format!("did you mean: {expected}")), "{words:?}");
        }
    }
}
