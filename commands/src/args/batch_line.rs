//! `#LATTICE` and `#SBATCH` lines of a batch script: their translation to options of `lattice batch`, and errors for unknown options.

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, CommandFactory, Parser};
use lattice_dialects::idle::{self, NO_MEMORY_LIMIT, Value};

use super::batch::BatchOptions;

impl BatchOptions {
    /// Parses the words of a script line: flags as on the command line, or `name=value` without dashes.
    ///
    /// # Errors
    /// Returns a message for an invalid line. For an unknown option, it names the nearest known option.
    pub(crate) fn of_line(words: Vec<String>) -> Result<Self, String> {
        let mut passed_over = Vec::new();
        let words: Vec<String> = match words.first() {
            Some(first) if !first.starts_with('-') => {
                if let Some((name, value)) = name_and_value_apart(&words) {
                    return Err(format!(
                        "{name} and {value} are two words: type {name}={value}, or --{} {value}",
                        name.replace('_', "-")
                    ));
                }
                words.iter().map(|word| with_dashes(word)).collect()
            }
            _ => {
                let (words, notes) = of_sbatch_line(words);
                passed_over = notes;
                words
            }
        };
        let mut options = Line::try_parse_from(words).map(|line| line.options).map_err(|error| reason(&error))?;
        options.passed_over = passed_over;
        options.check().map(|()| options)
    }
}

/// Alternative to an unsupported flag of sbatch that would change the result of a job.
pub fn instead(flag: &str) -> Option<&'static str> {
    match flag {
        "--array" | "-a" => Some("submit the script once for each index, as its argument"),
        "--dependency" | "-d" => Some(
            "`lattice batch --wait FIRST && lattice batch NEXT` where you log in; a script that ends with `lattice batch` of the next one needs a certificate in its home",
        ),
        "--test-only" => Some("`lattice queue` and `lattice nodes` show what is free"),
        "--begin" | "-b" => Some("submit it with `at` or a timer"),
        "--exclude" | "-x" => Some("name the nodes that it is to have, with --nodelist"),
        "--export" => {
            Some("a script has the environment in which it is submitted: `env -i lattice batch ...` for none")
        }
        "--open-mode" => Some("a file of output is emptied first; one for each job has %j in its name"),
        "--hint" | "--cpu-bind" | "--gpus-per-task" | "--distribution" | "-m" => {
            Some("set it in the script, for `lattice launch` or `lattice srun`")
        }
        _ => None,
    }
}

/// Short flags of sbatch that have another meaning in this program, with their long flags.
const LETTERS: [(&str, &str); 1] = [("-q", "--qos")];

const OF_SRUN: &str = "type it to `lattice launch` or `lattice srun` in the script";

/// Flags of sbatch that are ignored here, in addition to [those of srun](IdleArgs): letter, name, and whether a value follows. If users may miss
/// the effect of a flag, it has a reason for the note.
const OF_SBATCH: &[(Option<&str>, &str, Value, Option<&str>)] = &[
    (Some("-L"), "--licenses", Value::Required, Some("licences are not shared out")),
    (Some("-M"), "--clusters", Value::Required, Some("a job runs on the cluster of --api")),
    (Some("-Q"), "--quiet", Value::No, None),
    (Some("-v"), "--verbose", Value::No, None),
    (
        Some("-k"),
        "--no-kill",
        Value::Optional,
        Some("an allocation that loses a node ends; --requeue runs the job again"),
    ),
    (None, "--switches", Value::Required, Some("nodes are not chosen by their switches")),
    (None, "--threads-per-core", Value::Required, Some(OF_SRUN)),
    (None, "--cpus-per-gpu", Value::Required, Some(OF_SRUN)),
    (None, "--mem-per-gpu", Value::Required, Some(NO_MEMORY_LIMIT)),
    (None, "--kill-on-invalid-dep", Value::Required, None),
    (None, "--get-user-env", Value::Optional, Some("a script has the environment in which it is submitted")),
    (None, "--propagate", Value::Optional, None),
];

/// Translates the words of a `#SBATCH` line to options of `lattice batch`. Returns them with notes on ignored flags.
fn of_sbatch_line(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut ours, mut notes, mut words) = (Vec::new(), Vec::new(), words.into_iter());
    while let Some(word) = words.next() {
        let Some((name, value, reason)) = passed_over(&word) else {
            ours.extend(of_sbatch(word));
            continue;
        };
        notes.extend(reason.map(|reason| idle::note(name, reason)));
        if value == Value::Required {
            drop(words.next());
        }
    }
    (ours, notes)
}

/// Name, expected value in the next word, and reason of a flag in [`OF_SBATCH`]; `None` for any other word.
fn passed_over(word: &str) -> Option<(&'static str, Value, Option<&'static str>)> {
    let (name, has_value) = word.split_once('=').map_or((word, false), |(name, _)| (name, true));
    OF_SBATCH.iter().find_map(|&(letter, long, value, reason)| {
        let value = match letter {
            _ if name == long => Some(if has_value { Value::No } else { value }),
            Some(letter) if word == letter => Some(value),
            Some(letter) if value == Value::Required && word.starts_with(letter) => Some(Value::No),
            _ => None,
        };
        value.map(|value| (long, value, reason))
    })
}

/// Translates a word of a `#SBATCH` line to an option of `lattice batch`; `None` for a flag that requests the default.
fn of_sbatch(word: String) -> Option<String> {
    match &*word {
        "--no-requeue" => return Some("--requeue=never".to_owned()),
        "--export=ALL" | "--parsable" => return None,
        _ => {}
    }
    let letter = LETTERS.iter().find_map(|(letter, name)| Some((name, word.strip_prefix(letter)?)));
    Some(match letter {
        Some((name, "")) => (*name).to_owned(),
        Some((name, value)) => format!("{name}={value}"),
        None => word,
    })
}

/// The options of one line.
#[derive(Debug, Parser)]
#[command(name = "#LATTICE", no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    options: BatchOptions,
}

/// `name=value` as a flag of the command line.
fn with_dashes(word: &str) -> String {
    match word.split_once('=') {
        Some((name, value)) => format!("--{}={value}", name.replace('_', "-")),
        None => format!("--{}", word.replace('_', "-")),
    }
}

/// The first option without dashes that is followed by its value as a separate word.
fn name_and_value_apart(words: &[String]) -> Option<(&str, &str)> {
    let line = Line::command();
    let takes_value = |name: &str| {
        let is_named = |arg: &Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|names| names.contains(&name))
        };
        line.get_arguments().any(|arg| is_named(arg) && arg.get_action().takes_values() && !arg.is_require_equals_set())
    };
    let pair = words.windows(2).find(|pair| takes_value(&pair[0].replace('_', "-")) && !pair[1].contains('='))?;
    Some((&pair[0], &pair[1]))
}

/// The first paragraph of an error. For an unknown option: the alternative to it, or the nearest known option.
fn reason(error: &clap::Error) -> String {
    let unknown = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    match (error.kind(), unknown) {
        (ErrorKind::UnknownArgument, Some(typed)) if !typed.starts_with('-') => {
            format!("{typed:?} is no option; a value with spaces stands in quotes")
        }
        (ErrorKind::UnknownArgument, Some(typed)) => match instead(&typed) {
            Some(instead) => format!("there is no option {typed}: {instead}"),
            None => match nearest(&typed) {
                Some(near) => format!("there is no option {typed}; the nearest is {near}"),
                None => format!("there is no option {typed}; lattice batch --help has all"),
            },
        },
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            text.split("\n\n").next().unwrap_or_default().trim_end().to_owned()
        }
    }
}

/// The nearest known option, if the typed one may be a misspelling of it.
fn nearest(typed: &str) -> Option<String> {
    let line = Line::command();
    let names = line.get_arguments().flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default());
    let distance = |name: &&str| strsim::damerau_levenshtein(typed.trim_start_matches('-'), name);
    let near = names.min_by_key(distance).filter(|name| distance(name) <= 1 + name.len() / 4);
    near.map(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::args::Requeue;
    use lattice_console::Verbosity;

    fn line(words: &str) -> Result<BatchOptions, String> {
        BatchOptions::of_line(words.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn a_line_has_flags_with_dashes_or_without() {
        for words in
            ["--nodes=64 --walltime=2:00:00", "-N 64 -t 2:00:00", "nodes=64 walltime=2:00:00", "nodes=64 time=2h"]
        {
            let options = line(words).unwrap();
            assert_eq!((options.count, options.time), (Some(64), Some(Duration::from_secs(7200))), "{words}");
        }
        assert_eq!(line("network_domain=x").unwrap().network_domain.as_deref(), Some("x"));
        assert_eq!(line("job_name=x").unwrap().job_name.as_deref(), Some("x"));
        assert_eq!(line("requeue").unwrap().requeue, Some(Requeue::OnNodeFailure));
        assert_eq!(line("--requeue=never").unwrap().requeue, Some(Requeue::Never));
    }

    #[test]
    fn what_a_line_cannot_have_is_named_with_the_nearest_that_it_can() {
        for (words, expected) in [
            ("--node=4", "there is no option --node; the nearest is --nodes"),
            ("outputs=x", "there is no option --outputs; the nearest is --output"),
            ("--array=1-9", "there is no option --array: submit the script once for each index"),
            ("--export=NONE", "there is no option --export: a script has the environment in which it is submitted"),
            ("--spread-job", "there is no option --spread-job; lattice batch --help has all"),
            ("--job-name=my job", "\"job\" is no option; a value with spaces stands in quotes"),
            ("nodes 2", "nodes and 2 are two words: type nodes=2, or --nodes 2"),
            ("time=5 job_name x", "job_name and x are two words: type job_name=x, or --job-name x"),
            ("requeue 2", "there is no option --2; lattice batch --help has all"),
            ("--begin=now+1hour", "there is no option --begin: submit it with `at` or a timer"),
            ("--nodes=0", "invalid value '0' for '--nodes <N>': a number of nodes is N or MIN-MAX, from 1 on"),
            ("--nodes=3-2", "invalid value '3-2' for '--nodes <N>': a number of nodes is N or MIN-MAX, from 1 on"),
            ("--time=500ms", "invalid value '500ms' for '--time <MINUTES|TIME>': an allocation runs for 1 s at least"),
            ("-N 2 -w a", "--nodes 2 and --nodelist a, which names 1 node, do not agree: leave one of the two away"),
        ] {
            let reason = line(words).unwrap_err();
            assert!(reason.starts_with(expected), "{words}: {reason}");
        }
    }

    #[test]
    fn a_range_of_nodes_is_its_least_number_and_one_that_agrees_with_the_names_is_no_conflict() {
        assert_eq!(line("-N 2-3").unwrap().count, Some(2));
        let both = line("-N 2 -w node[0-1]").unwrap();
        assert_eq!((both.count, both.list.as_deref()), (Some(2), Some("node[0-1]")));
    }

    #[test]
    fn flags_of_sbatch_that_are_ignored_are_passed_over_with_a_note_if_they_are_missed() {
        let words = "-L matlab -Mcluster --clusters=a --switches 1 --threads-per-core=1 --cpus-per-gpu=4 --get-user-env \
            --propagate=STACK -v -Q --kill-on-invalid-dep=yes -N 3";
        let options = line(words).unwrap();
        assert_eq!(options.count, Some(3));
        let licences = "note: --licenses is ignored: licences are not shared out";
        let notes = options.notes(Verbosity::Normal);
        assert!(notes.contains(&licences.to_owned()) && notes.len() == 6, "{notes:?}");
    }

    #[test]
    fn words_of_sbatch_are_read_as_they_are_typed_there() {
        for (typed, ours) in
            [("-qnight", Some("--qos=night")), ("--no-requeue", Some("--requeue=never")), ("--export=ALL", None)]
        {
            assert_eq!(of_sbatch(typed.to_owned()).as_deref(), ours, "{typed}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_script() {
        let (above, below) = (line("--nodes=2 --time=5").unwrap(), line("nodelist=a[0-3] time=9 job-name=x").unwrap());
        let both = above.over(below);
        assert_eq!((both.count, both.list, both.time), (Some(2), None, Some(Duration::from_secs(300))));
        assert_eq!(both.job_name.as_deref(), Some("x"));
    }
}
