//! The help of `lattice launch`: a summary for `-h`, and one group of flags for `--help=TOPIC`. Its texts come from the definition of the flags.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Command;
use clap::error::ErrorKind;
use lattice_console::exit;
use lattice_console::formatting::nearest;

use super::groups;
use super::other_launchers::{is_option, takes_next};

/// Topics, each with the beginning of the heading of its flags.
const TOPICS: [(&str, &str); 12] = [
    ("program", "For each program"),
    ("placement", "Placement"),
    ("cluster", "Cluster"),
    ("copies", "Copies"),
    ("containers", "Containers"),
    ("pmi", "PMI"),
    ("output", "Input and output"),
    ("failure", "Failures"),
    ("time", "Time"),
    ("scripts", "Programs around it"),
    ("debuggers", "Debuggers"),
    ("environment", "Environment"),
];

/// Topic of the table of exit codes, which belongs to no flag.
const EXIT_CODES: &str = "exit-codes";

/// Template of the summary: the flags that most launches need. It is text, because whole descriptions do not fit one screen.
const SUMMARY: &str = "\
{about-with-newline}
{usage-heading} {usage}

Ranks:
  -n, --ntasks N               Start N ranks
      --tasks-per-node K       Put at most K ranks on a node
      --fill                   Start a rank in each slot of the nodes
  -c, --cpus-per-task N        Give each rank N CPUs of its own
      --gpus-per-task N        Give each rank N GPUs of its own
      --cpu-bind BIND          Bind ranks to cores, numa or sockets
  -O, --overcommit             Let ranks share CPUs
  -D, --chdir DIR              Set the working directory
      --env NAME=VALUE         Set a variable
      --container IMAGE        Run in a container

Nodes:
  -N, --nodes N                Use N nodes
  -w, --nodelist NODES         Use these nodes, such as node[0-3,7]
  -H, --host HOST:N,...        Use these hosts, with N slots each
      --hostfile FILE          Use the hosts in FILE
      --via HOW                Reach nodes by slurm, ssh or another way
      --alloc ID               Use this allocation
      --bcast                  Copy the program to the nodes first
      --dry-run, --show-map    Print the place of each rank

Input and output:
  -l, --label                  Start lines with the number of the rank
  -o, --output FILE            Write to FILE; %t in it is the rank
  -e, --error FILE             Write standard error to FILE
  -i, --stdin none|RANK|all    Send standard input there
      --pty                    Give rank 0 a terminal
      --json                   Print events as JSON
      --summary                Print times and resources at the end

End:
      --timeout TIME           End the launch after 30 (seconds), 5m or 1h
  -t, --time TIME              The same as in srun: 30 is minutes
  -K, --kill-on-bad-exit=0     Continue after the failure of a rank
      --detach                 Start the launch, print its id and return

  -q, --quiet; -v, --verbose   Print failures only; print more
  -h; --help                   Print this; print all flags

Example:
  lattice launch -n 4 --label ./a.out{after-help}";

/// The line about topics, at the end of a help.
pub(super) fn line() -> String {
    let names: Vec<&str> = names().collect();
    format!("One group of flags: lattice launch --help=TOPIC\nTopics: {}", names.join(", "))
}

fn names() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|&(name, _)| name).chain([EXIT_CODES])
}

/// Answers a request for the summary or for a topic among the words of a launch. `None` if there is no such request. `definition` creates the
/// command that parses the words; it is called only if a word looks like a request.
pub(super) fn answer(words: &[OsString], definition: impl FnOnce() -> Command) -> Option<clap::Error> {
    if !words.iter().any(|word| word == "-h" || word.as_bytes().starts_with(b"--help")) {
        return None;
    }
    let command = definition();
    let mut next = 0;
    while let Some(word) = words.get(next).filter(|word| is_option(word)) {
        let topic = match word.to_str() {
            Some("-h") => return Some(rendered(summary(command))),
            // A word after `--help` is a topic at the end of a line only. Otherwise it may be the program.
            Some("--help") => {
                let [topic] = &words[next + 1..] else { return None };
                topic.to_str().filter(|_| !is_option(topic))?
            }
            Some(word) if word.starts_with("--help=") => &word["--help=".len()..],
            _ => {
                next += 1 + usize::from(takes_next(word, &command));
                continue;
            }
        };
        return Some(of_topic(command, topic));
    }
    None
}

/// The help of a changed definition, as clap returns it.
fn rendered(mut command: Command) -> clap::Error {
    let asked = command.try_get_matches_from_mut(["lattice launch", "-h"]);
    asked.expect_err("the help is returned as an error")
}

/// The definition with the summary as its help.
fn summary(command: Command) -> Command {
    let styles = command.get_styles();
    let template = groups::styled(SUMMARY, styles.get_header(), styles.get_literal());
    command.help_template(template).after_help(line())
}

/// The help of one topic, or the error for an unknown one.
fn of_topic(mut command: Command, topic: &str) -> clap::Error {
    if topic == EXIT_CODES {
        let command = command.mut_args(|arg| arg.hide(true)).after_help(exit::help_text());
        return rendered(command);
    }
    let Some((_, heading)) = TOPICS.iter().find(|(name, _)| is_meant(topic, name)) else {
        let known: Vec<String> = names().map(str::to_owned).collect();
        let near = nearest(topic, &known).unwrap_or(EXIT_CODES);
        let text = format!("there is no topic {topic:?}; there are {}\n\n  tip: type --help={near}", known.join(", "));
        return command.error(ErrorKind::InvalidValue, text);
    };
    let is_of_topic = |arg: &clap::Arg| arg.get_help_heading().is_some_and(|text| text.starts_with(heading));
    let command = command.mut_args(|arg| {
        let is_hidden = arg.is_hide_set() || !is_of_topic(&arg);
        arg.hide(is_hidden)
    });
    rendered(command.after_help(""))
}

/// True for a name, its beginning, or a name with an ending, such as `failures`.
fn is_meant(typed: &str, name: &str) -> bool {
    let typed = typed.to_ascii_lowercase();
    typed.len() >= 3 && (name.starts_with(&typed) || typed.starts_with(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{launch_definition, parse};
    use super::*;

    fn help(line: &str) -> String {
        let error = parse(line.split(' ').map(OsString::from)).unwrap_err();
        assert!(!error.use_stderr(), "{line}: {error}");
        error.to_string()
    }

    #[test]
    fn the_summary_fits_one_screen_and_names_the_rest() {
        let text = help("lattice launch -n 2 -h ./a.out");
        assert!(text.lines().count() <= 60, "{text}");
        assert!(text.contains("--help=TOPIC") && names().all(|name| text.contains(name)), "{text}");
        assert_eq!(help("lattice run -h"), help("lattice launch -h"));
    }

    #[test]
    fn the_flags_of_the_summary_exist_under_their_letters() {
        let launch = launch_definition();
        let mut count = 0;
        for line in SUMMARY.lines().filter(|line| line.trim_start().starts_with('-')) {
            assert!(line.len() <= 80, "{line}");
            let flags = line.trim_start().split("  ").next().unwrap();
            let words: Vec<&str> = flags.split([' ', ',', ';', '=']).filter(|word| word.starts_with('-')).collect();
            let long = |name: &str| launch.get_arguments().find(|arg| arg.get_long() == Some(name));
            for (index, word) in words.iter().enumerate() {
                count += 1;
                let Some(name) = word.strip_prefix("--") else { continue };
                let arg = long(name).unwrap_or_else(|| panic!("{word}"));
                let before = index.checked_sub(1).map(|before| words[before]).filter(|word| !word.starts_with("--"));
                assert_eq!(before.and_then(|word| word.chars().nth(1)), arg.get_short(), "{line}");
            }
        }
        assert!(count > 40, "{count}");
    }

    #[test]
    fn a_topic_has_the_flags_of_its_heading_only() {
        for line in ["--help=failure", "--help failures", "--label --help=failure ./a", "-n 2 --help fail"] {
            let text = help(&format!("lattice launch {line}"));
            assert!(text.contains("Failures:\n") && text.contains("--no-kill"), "{text}");
            assert!(!text.contains("Placement:") && !text.contains("--quiet") && !text.contains("--ntasks"), "{text}");
        }
        for (topic, heading) in TOPICS {
            assert!(help(&format!("lattice launch --help={topic}")).contains(heading), "{topic}");
        }
        assert!(help("lattice launch --help exit-codes").contains("Exit codes:\n  0 "));
    }

    #[test]
    fn each_heading_is_one_topic() {
        let launch = launch_definition();
        let shown = launch.get_arguments().filter(|arg| !arg.is_hide_set());
        let headings: BTreeSet<&str> = shown.filter_map(|arg| arg.get_help_heading()).collect();
        assert_eq!(headings.len(), TOPICS.len(), "{headings:?}");
        for heading in headings {
            let topics = TOPICS.iter().filter(|(_, begin)| heading.starts_with(begin));
            assert_eq!(topics.count(), 1, "{heading}");
        }
    }

    #[test]
    fn an_unknown_topic_is_answered_with_all_topics() {
        let error = parse("lattice launch --help=placment".split(' ').map(OsString::from)).unwrap_err();
        assert!(error.use_stderr());
        let text = error.to_string();
        assert!(text.contains("there is no topic \"placment\"; there are program, placement, cluster,"), "{text}");
        assert!(text.contains("tip: type --help=placement"), "{text}");
    }

    #[test]
    fn the_whole_help_and_the_words_of_a_program_are_left_alone() {
        let whole = help("lattice launch --help");
        assert!(whole.contains("--stuck-after") && whole.contains("Exit codes:"), "{whole}");
        assert_eq!(help("lattice launch --help ./a x"), whole);
        for line in ["lattice launch ./a -h", "lattice launch ./a --help=pmi"] {
            assert!(parse(line.split(' ').map(OsString::from)).is_ok(), "{line}");
        }
    }
}
