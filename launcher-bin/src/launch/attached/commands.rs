//! User commands to a launch to which this process is attached. No I/O.

use std::collections::VecDeque;

use lattice_cluster_client::messages::{Role, ToLaunch};
use lattice_session::session_io::Control;

/// Meaning of a user command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// Send this message to the launch.
    Send(ToLaunch),
    /// The user leaves the launch by this signal. The launch continues.
    Leave(i32),
    /// No effect: this client must not give the command.
    Ignore,
}

impl Command {
    /// Meaning of `control` for a client in this role.
    pub(super) fn of(control: Control, role: Role) -> Self {
        match (role, control) {
            (Role::Owner, Control::Signal(signal)) => Self::Send(ToLaunch::Signal(signal)),
            (Role::Owner, Control::ResizeTerminal(size)) => Self::Send(ToLaunch::ResizeTerminal(size)),
            (Role::Owner, Control::End(signal)) => Self::Send(ToLaunch::End(signal)),
            (Role::Owner, Control::Kill(signal)) => Self::Send(ToLaunch::Kill(signal)),
            (Role::Viewer, Control::End(signal) | Control::Kill(signal)) => Self::Leave(signal),
            _ => Self::Ignore,
        }
    }
}

/// Commands that arrived while there was no connection.
#[derive(Debug, Default)]
pub(super) struct Unsent(VecDeque<ToLaunch>);

impl Unsent {
    /// Appends a message. Of equal messages, and of terminal sizes, only the last is kept. So there are no more messages than signals.
    pub(super) fn keep(&mut self, message: ToLaunch) {
        let is_size = |message: &ToLaunch| matches!(message, ToLaunch::ResizeTerminal(_));
        self.0.retain(|before| *before != message && !(is_size(before) && is_size(&message)));
        self.0.push_back(message);
    }

    /// Removes all messages, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = ToLaunch> {
        self.0.drain(..)
    }

    /// Handles a command while there is no connection. Returns true if the user stops waiting for one: the owner ends the launch at once,
    /// or a viewer leaves.
    pub(super) fn take_in(&mut self, control: Control, role: Role) -> bool {
        match Command::of(control, role) {
            Command::Send(ToLaunch::Kill(_)) | Command::Leave(_) => true,
            // Above all SIGCONT: without it, stopped ranks would stay stopped.
            Command::Send(message) => {
                self.keep(message);
                false
            }
            Command::Ignore => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use lattice_session::settings::TerminalSize;

    use super::*;

    #[test]
    fn an_owner_steers_the_launch_and_a_viewer_only_leaves_it() {
        let check = |control: fn(i32) -> Control, owner: Command, viewer: Command| {
            assert_eq!(Command::of(control(2), Role::Owner), owner);
            assert_eq!(Command::of(control(2), Role::Viewer), viewer);
        };
        check(Control::Signal, Command::Send(ToLaunch::Signal(2)), Command::Ignore);
        check(Control::End, Command::Send(ToLaunch::End(2)), Command::Leave(2));
        check(Control::Kill, Command::Send(ToLaunch::Kill(2)), Command::Leave(2));
        check(|_| Control::GiveUp, Command::Ignore, Command::Ignore);
        let resize = |_| Control::ResizeTerminal(TerminalSize::default());
        check(resize, Command::Send(ToLaunch::ResizeTerminal(TerminalSize::default())), Command::Ignore);
    }

    #[test]
    fn signals_are_kept_until_there_is_a_connection() {
        let (stop, cont) = (nix::libc::SIGSTOP, nix::libc::SIGCONT);
        let mut unsent = Unsent::default();
        for signal in [stop, cont, stop, nix::libc::SIGUSR1, cont] {
            assert!(!unsent.take_in(Control::Signal(signal), Role::Owner));
        }
        assert!(unsent.take_in(Control::Kill(2), Role::Owner), "the user has waited long enough");
        let kept = [ToLaunch::Signal(stop), ToLaunch::Signal(nix::libc::SIGUSR1), ToLaunch::Signal(cont)];
        assert_eq!(unsent.drain().collect::<Vec<_>>(), kept);
    }

    #[test]
    fn of_the_sizes_of_the_terminal_the_last_is_kept() {
        let mut unsent = Unsent::default();
        let size = |rows| TerminalSize { rows, columns: 80 };
        (1..100).for_each(|rows| assert!(!unsent.take_in(Control::ResizeTerminal(size(rows)), Role::Owner)));
        assert_eq!(unsent.drain().collect::<Vec<_>>(), [ToLaunch::ResizeTerminal(size(99))]);
    }

    #[test]
    fn an_end_in_order_is_kept_and_not_waited_for() {
        let mut unsent = Unsent::default();
        assert!(!unsent.take_in(Control::End(15), Role::Owner));
        assert_eq!(unsent.drain().collect::<Vec<_>>(), [ToLaunch::End(15)]);
    }

    #[test]
    fn a_viewer_wants_nothing_of_the_launch() {
        let mut unsent = Unsent::default();
        assert!(!unsent.take_in(Control::Signal(10), Role::Viewer));
        assert!(unsent.take_in(Control::End(2), Role::Viewer));
        assert_eq!(unsent.drain().count(), 0);
    }

    proptest::proptest! {
        /// Repeated commands without a connection fill no memory, and the last one counts.
        #[test]
        fn of_equal_commands_the_last_is_kept(signals in proptest::collection::vec(1_i32..=31, 1..200)) {
            let mut unsent = Unsent::default();
            for &signal in &signals {
                proptest::prop_assert!(!unsent.take_in(Control::Signal(signal), Role::Owner));
            }
            let kept: Vec<ToLaunch> = unsent.drain().collect();
            let last = signals.last().copied().map(ToLaunch::Signal);
            proptest::prop_assert_eq!(kept.last().cloned(), last);
            let different: std::collections::HashSet<i32> = signals.iter().copied().collect();
            proptest::prop_assert_eq!(kept.len(), different.len());
        }
    }
}
