//! A command of a test: arguments, changes of the environment, input, deadline.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::built;

/// Time after which a command is killed and its test fails. It is several times the longest run on a machine with ten busy processes
/// per core. It turns a hang into a report.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// A command, with its input and environment.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// `None` removes the variable.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) input: Vec<u8>,
    pub(crate) is_typed_to: bool,
    /// Rows and columns of its terminal.
    pub(crate) terminal: Option<(u16, u16)>,
    pub(crate) deadline: Duration,
    pub(crate) mark: String,
    pub(crate) reads_output: bool,
}

/// Returns `lattice` with these words. More words can be added.
pub fn lattice(words: &str) -> Command {
    Command::new(built::lattice()).words(words)
}

/// Returns `lattice launch` with these flags. The caller must append the program.
pub fn launch(flags: &str) -> Command {
    lattice("launch").words(flags)
}

impl Command {
    /// Creates a command without arguments and with empty input.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            input: Vec::new(),
            is_typed_to: false,
            terminal: None,
            deadline: DEADLINE,
            mark: format!("{}-{number}", std::process::id()),
            reads_output: true,
        }
    }

    /// Sets the deadline of the command, if the default is too short.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Adds arguments without spaces.
    pub fn words(mut self, words: &str) -> Self {
        self.arguments.extend(words.split_whitespace().map(OsString::from));
        self
    }

    /// Adds one argument unchanged.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds a bash script as the program. The caller may append the arguments `$1` and so on.
    pub fn bash(self, script: &str) -> Self {
        self.words("bash -c").arg(script).arg("bash")
    }

    /// Sets a variable of the command itself.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), Some(value.as_ref().to_owned())));
        self
    }

    /// Starts the command in a directory.
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Sets the standard input of the command, which ends after these bytes.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Lets the test write to standard input while the command runs: [`Running::type_in`](crate::Running::type_in).
    pub fn typed_to(mut self) -> Self {
        self.is_typed_to = true;
        self
    }

    /// Directory of this command's sets, unless it has another one.
    pub(crate) fn sets(&self) -> PathBuf {
        std::env::temp_dir().join(format!("lattice-test-sets-{}", self.mark))
    }

    /// Starts the command on a new terminal with this number of rows and columns. The terminal's output is the standard output, and
    /// the test types.
    pub fn on_terminal(mut self, rows: u16, columns: u16) -> Self {
        self.terminal = Some((rows, columns));
        self.typed_to()
    }

    /// Leaves standard output to the test: [`Running::output`](crate::Running::output).
    pub fn leave_output(mut self) -> Self {
        self.reads_output = false;
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            match value {
                Some(value) => write!(f, "{}={value:?} ", name.display())?,
                None => write!(f, "-u {} ", name.display())?,
            }
        }
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| {
            let text = argument.to_string_lossy();
            let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=./:,%".contains(&byte));
            if plain && !text.is_empty() { write!(f, " {text}") } else { write!(f, " {argument:?}") }
        })
    }
}
