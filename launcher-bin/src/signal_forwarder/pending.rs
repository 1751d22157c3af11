//! Commands that the launch has not received yet. Pure.
//!
//! The kernel keeps a pending signal once, however often it was sent. This queue does the same. So the number of signals limits its length, and
//! no command is dropped for lack of space.

use std::collections::VecDeque;

use lattice_session::session_io::Control;
use lattice_session::settings::TerminalSize;

/// A command of the user. Its numbers are signal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Sends a signal to the ranks.
    Signal(i32),
    /// Sets the terminal of the rank with a terminal to this size.
    ResizeTerminal(TerminalSize),
    /// Ends the launch in order.
    End(i32),
    /// Ends the launch at once.
    Kill(i32),
}

impl From<Command> for Control {
    fn from(command: Command) -> Self {
        match command {
            Command::Signal(signal) => Self::Signal(signal),
            Command::ResizeTerminal(size) => Self::ResizeTerminal(size),
            Command::End(signal) => Self::End(signal),
            Command::Kill(signal) => Self::Kill(signal),
        }
    }
}

/// Queue of commands, each at most once.
#[derive(Debug, Default)]
pub(super) struct Pending {
    queue: VecDeque<Command>,
}

impl Pending {
    /// Appends a command, and removes an equal pending command, so that the last of SIGSTOP and SIGCONT applies. Only the last size of the
    /// terminal is kept.
    pub(super) fn push(&mut self, command: Command) {
        let is_size = |command: &Command| matches!(command, Command::ResizeTerminal(_));
        self.queue.retain(|pending| *pending != command && !(is_size(pending) && is_size(&command)));
        self.queue.push_back(command);
    }

    /// Removes the oldest command.
    pub(super) fn pop(&mut self) -> Option<Command> {
        self.queue.pop_front()
    }

    /// True if no command is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drained(commands: impl IntoIterator<Item = Command>) -> Vec<Command> {
        let mut pending = Pending::default();
        commands.into_iter().for_each(|command| pending.push(command));
        std::iter::from_fn(|| pending.pop()).collect()
    }

    #[test]
    fn the_last_of_stop_and_continue_counts() {
        use Command::Signal;
        assert_eq!(drained([Signal(19), Signal(18), Signal(19)]), [Signal(18), Signal(19)]);
        assert_eq!(drained([Signal(19), Signal(18), Signal(19), Signal(18)]), [Signal(19), Signal(18)]);
    }

    #[test]
    fn the_last_size_of_the_terminal_counts() {
        let size = |rows| Command::ResizeTerminal(TerminalSize { rows, columns: 80 });
        assert_eq!(drained([size(1), Command::End(2), size(2), size(3)]), [Command::End(2), size(3)]);
    }

    fn command() -> impl Strategy<Value = Command> {
        let signal = 1_i32..=64;
        prop_oneof![
            signal.clone().prop_map(Command::Signal),
            signal.clone().prop_map(Command::End),
            signal.prop_map(Command::Kill)
        ]
    }

    proptest! {
        #[test]
        fn every_command_is_delivered_once_and_the_newest_comes_last(
            commands in proptest::collection::vec(command(), 1..400),
        ) {
            let delivered = drained(commands.iter().copied());
            prop_assert_eq!(delivered.last(), commands.last());
            prop_assert!(commands.iter().all(|sent| delivered.iter().filter(|seen| *seen == sent).count() == 1));
        }
    }
}
