//! The flags of `lattice batch`, which are also those of `#LATTICE` and `#SBATCH` lines, and of the commands about the queue.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use lattice_console::Verbosity;
use lattice_console::values::{node_list, template};
use lattice_dialects::idle::{self, IdleArgs};
use lattice_dialects::{distinct, slurm_time};
use lattice_session::count::counted;
use lattice_session::template::Template;

use super::batch_tasks::TaskArgs;
use super::cluster::{Requeue, TableArgs};

/// End of the help of `lattice batch`.
pub const AFTER_HELP: &str = "In the script, lines before the first command:\n  \
    #LATTICE --nodes=4 --time=2:00:00\n  \
    #LATTICE nodes=4                               # without dashes as well\n\n\
    Without a line of #LATTICE, those of #SBATCH are read.\n\n\
    In file names, %j is the job's id, %x its name, %N the node that the script runs on, %u the user, %% a percent sign.\n\n\
    Examples:\n  \
    lattice batch -N 4 --time 30 job.sh input.nml\n  \
    lattice batch -N 4 --wrap 'lattice launch -n 64 ./a.out'\n  \
    lattice queue";

/// End of the help of `lattice queue`.
pub const QUEUE_AFTER_HELP: &str =
    "Example:\n  lattice queue --all\n\nTIME is since the allocation began, LIMIT how long it may run.";

/// End of the help of `lattice cancel`.
pub const CANCEL_AFTER_HELP: &str = "Examples:\n  \
    lattice cancel k3jq09zmf2\n  \
    lattice cancel --me";

/// The flags of `lattice batch`.
#[derive(Clone, Debug, Args)]
pub struct BatchArgs {
    /// Options that a script can have as well; the command line overrides them.
    #[command(flatten)]
    pub options: BatchOptions,
    /// Wait for the end of the script, and return its exit code.
    #[arg(long)]
    pub wait: bool,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
    /// Run COMMAND, a line of the shell, instead of a script.
    #[arg(long, value_name = "COMMAND", conflicts_with = "script", value_parser = NonEmptyStringValueParser::new())]
    pub wrap: Option<String>,
    /// The script: it begins with #! and its interpreter, and is read now. Without it and --wrap, it is read from standard input.
    #[arg(value_name = "SCRIPT")]
    pub script: Option<PathBuf>,
    /// Its arguments.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Options of a batch job, on the command line or in its script.
#[derive(Clone, Debug, Default, Args)]
pub struct BatchOptions {
    /// N nodes that are free; of MIN-MAX, MIN [default: as many as --ntasks need, or 1].
    #[arg(short = 'N', long = "nodes", value_name = "N", value_parser = node_count, allow_negative_numbers = true)]
    pub count: Option<u32>,
    /// Exactly these nodes, such as node[0-3,7].
    #[arg(short = 'w', long = "nodelist", value_name = "NODES", value_parser = node_list)]
    pub list: Option<String>,
    /// End it after this time: minutes, HOURS:MINUTES:SECONDS and the remaining forms of sbatch, or 90s. Jobs with a time limit can be
    /// backfilled.
    #[arg(short, long, visible_alias = "walltime", value_name = slurm_time::VALUE_NAME, value_parser = slurm_time::allocation_limit)]
    pub time: Option<Duration>,
    /// Write standard output of the script to FILE [default: lattice-%j.out].
    #[arg(short, long, value_name = "FILE", value_parser = template())]
    pub output: Option<Template>,
    /// Write its standard error to FILE [default: the file of --output].
    #[arg(short, long, value_name = "FILE", value_parser = template())]
    pub error: Option<Template>,
    /// Name of the job [default: that of the script's file].
    #[arg(short = 'J', long, visible_alias = "name", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub job_name: Option<String>,
    /// Queue it again after a failure, to run from its beginning on other nodes: never, on-node-failure (without WHEN) or on-any-failure.
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "on-node-failure", hide_possible_values = true)]
    pub requeue: Option<Requeue>,
    /// Working directory [default: that of the submission].
    #[arg(short = 'D', long, visible_aliases = ["workdir", "cwd"], value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Tasks of `srun` in the script.
    #[command(flatten)]
    pub tasks: TaskArgs,
    /// Flags of sbatch that are ignored here.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Events of which sbatch sends mail; none is sent here.
    #[arg(long, value_name = "TYPE", hide = true)]
    pub mail_type: Option<String>,
    /// User that mail would be sent to.
    #[arg(long, value_name = "USER", hide = true)]
    pub mail_user: Option<String>,
    /// For a scheduler in front of this one; ignored here.
    #[arg(long, value_name = "NAME", hide = true)]
    pub vcluster: Option<String>,
    /// The same.
    #[arg(long, value_name = "NAME", hide = true)]
    pub network_domain: Option<String>,
    /// Notes on words of its lines that are ignored.
    #[arg(skip)]
    pub(super) passed_over: Vec<String>,
}

impl BatchOptions {
    /// These options, completed by those of `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        let (count, list) = match (self.count, self.list) {
            (None, None) => (below.count, below.list),
            given => given,
        };
        Self {
            count,
            list,
            time: self.time.or(below.time),
            output: self.output.or(below.output),
            error: self.error.or(below.error),
            job_name: self.job_name.or(below.job_name),
            requeue: self.requeue.or(below.requeue),
            chdir: self.chdir.or(below.chdir),
            tasks: self.tasks.over(below.tasks),
            idle: self.idle.and(below.idle),
            mail_type: self.mail_type.or(below.mail_type),
            mail_user: self.mail_user.or(below.mail_user),
            vcluster: self.vcluster.or(below.vcluster),
            network_domain: self.network_domain.or(below.network_domain),
            passed_over: [self.passed_over, below.passed_over].concat(),
        }
    }

    /// Refuses a number of nodes that differs from the number of names.
    ///
    /// # Errors
    /// Returns a message with both numbers if they differ.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (Some(count), Some(list)) = (self.count, &self.list) else { return Ok(()) };
        match hostlist::expand(list).map_or(0, |names| distinct(names).len()) {
            named if named == count as usize => Ok(()),
            named => Err(format!(
                "--nodes {count} and --nodelist {list}, which names {}, do not agree: leave one of the two away",
                counted(named, "node")
            )),
        }
    }

    /// Lines about options that are ignored here, and why, as far as they are to be reported.
    pub(crate) fn notes(&self, verbosity: Verbosity) -> Vec<String> {
        let is_in_front = self.vcluster.is_some() || self.network_domain.is_some();
        let has_mail = self.mail_type.is_some() || self.mail_user.is_some();
        let in_front = idle::note("vcluster or network-domain", "it is for a scheduler in front of this one");
        let mail = idle::note("--mail-type or --mail-user", "no mail is sent");
        let own =
            [(is_in_front, in_front), (has_mail, mail)].into_iter().filter_map(|(given, note)| given.then_some(note));
        let own = own.chain(self.passed_over.iter().cloned()).filter(|_| verbosity > Verbosity::Quiet);
        // The nodes of a job are not selected yet.
        distinct(own.chain(self.idle.notes(idle::Allocation::Missing, verbosity)))
    }
}

/// Parses a number of nodes in the forms of sbatch: `N`, or `MIN-MAX`, which means MIN.
fn node_count(text: &str) -> Result<u32, String> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|&number| number > 0);
    let count = match text.split_once('-') {
        None => number(text),
        Some((least, most)) => number(least).zip(number(most)).filter(|(least, most)| least <= most).map(|both| both.0),
    };
    count.ok_or_else(|| "a number of nodes is N or MIN-MAX, from 1 on".to_owned())
}

/// The flags of `lattice queue`.
#[derive(Clone, Debug, Args)]
pub struct QueueArgs {
    /// Only these allocations, also ended ones.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Also those that have ended.
    #[arg(long)]
    pub all: bool,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// The number of a user.
fn user(text: &str) -> Result<u32, String> {
    let named = || nix::unistd::User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
    text.parse().ok().or_else(named).ok_or_else(|| "it is neither the name nor the number of a user here".to_owned())
}

/// The flags of `lattice cancel`.
#[derive(Clone, Debug, Args)]
pub struct CancelArgs {
    /// Launches, batch jobs or allocations.
    #[arg(value_name = "ID", required_unless_present_any = ["me", "user"], value_parser = NonEmptyStringValueParser::new())]
    pub ids: Vec<String>,
    /// All batch jobs and allocations of yours.
    #[arg(long, conflicts_with_all = ["ids", "user"])]
    pub me: bool,
    /// All batch jobs and allocations of this user, by name or number; for another user this needs an administrator.
    #[arg(long, value_name = "USER", value_parser = user, conflicts_with = "ids")]
    pub user: Option<u32>,
    /// Reason, kept in the record of a launch.
    #[arg(long, value_name = "TEXT", default_value = "lattice cancel")]
    pub reason: String,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Parameters of the launch of a batch job on its node. Its script is in the variable `LATTICE_BATCH_SCRIPT`.
#[derive(Clone, Debug, Args)]
pub struct BatchScriptArgs {
    /// Its name.
    #[arg(long)]
    pub job_name: String,
    /// File for its output.
    #[arg(long, value_parser = template())]
    pub output: Template,
    /// File for its standard error; else that of its output.
    #[arg(long, value_parser = template())]
    pub error: Option<Template>,
    /// Its arguments.
    #[arg(last = true)]
    pub args: Vec<OsString>,
}

/// The variable with the script of a batch job, in base64.
pub const SCRIPT: &str = "LATTICE_BATCH_SCRIPT";

/// The hidden command that runs a script.
pub const RUN_SCRIPT: &str = "batch-script";
