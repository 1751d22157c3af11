//! Converts signals of this process to commands of the launch.
//!
//! ```text
//! SIGINT, SIGTERM, SIGHUP   the first ends the launch in order, the second at once
//! SIGTSTP (Ctrl-Z)          stops the ranks, then this process; SIGCONT continues all. Without a shell that can continue it: no effect
//! QUIT, USR1, USR2, ...     forwarded to the ranks
//! SIGWINCH                  if rank 0 has a terminal, sets its size to the size of the launcher's terminal
//! output closed             ends the launch in order, as SIGPIPE ends a program
//! ```
//!
//! Two equal signals in quick succession are one ([`lattice_console::signals::Signals`]). Commands that the launch has not received yet wait in
//! [`Pending`]. The session or the attach stream delivers commands, and the renderer prints messages to the user.

mod early;
mod pending;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use lattice_console::signals::ENDING;
use lattice_console::terminal::{self, RawTerminal};
use lattice_session::deadline::until;
use lattice_session::session_io::Control;
use nix::sys::signal::{Signal, raise};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use self::early::EarlySignals;
use self::pending::{Command, Pending};

/// Signals for the ranks that all processes on a terminal also receive.
const ON_TERMINAL: [Signal; 2] = [Signal::SIGWINCH, Signal::SIGCONT];

/// Time to write output after the user ended the launch at once.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// Time to stop the ranks before this process stops.
const STOPPING: Duration = Duration::from_millis(200);
/// Capacity of the channel of commands to the launch. More commands wait in [`Pending`].
const COMMANDS: usize = 8;

/// Location of the ranks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankLocation {
    /// In the session of this process: a command has reached them when it is taken out of the queue.
    Local,
    /// On the nodes of a cluster: a command that is taken out of the queue is still in transit.
    Cluster,
}

/// Forwards this process's signals to a launch.
#[derive(Debug)]
pub(crate) struct SignalForwarder {
    signals: EarlySignals,
    control: mpsc::Sender<Control>,
    pending: Pending,
    hung_up: Arc<Notify>,
    interrupts: mpsc::UnboundedSender<Signal>,
    abandon: watch::Sender<bool>,
    location: RankLocation,
    phase: Phase,
    terminal: OurTerminal,
}

/// Relation of the launcher's terminal to the terminal of a rank.
#[derive(Debug)]
enum OurTerminal {
    /// No rank has a terminal.
    Ours,
    /// The terminal of rank 0 has the size of the launcher's terminal. If the launcher's terminal is its standard input, it is raw.
    Mirrored(Option<RawTerminal>),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// A command to end in order was sent.
    Ending,
    /// The launch was ended at once. A slow reader of the output has time until the deadline.
    Killed {
        deadline: Instant,
    },
    /// No writer waits for its reader any more.
    Abandoned,
}

/// The other ends of a [`SignalForwarder`]'s channels.
#[derive(Debug)]
pub(crate) struct Handles {
    /// Commands for the launch.
    pub(crate) control: mpsc::Receiver<Control>,
    /// Signals by which the user ended the launch.
    pub(crate) interrupts: mpsc::UnboundedReceiver<Signal>,
    /// To be notified when the output has no reader any more.
    pub(crate) hung_up: Arc<Notify>,
    /// True when no writer waits for its reader any more.
    pub(crate) abandoned: watch::Receiver<bool>,
}

impl SignalForwarder {
    /// Forwards the signals that arrived while the launch started, and all later signals.
    pub(crate) fn new(signals: EarlySignals, location: RankLocation) -> (Self, Handles) {
        let (control, commands) = mpsc::channel(COMMANDS);
        let (interrupts, interrupted) = mpsc::unbounded_channel();
        let (abandon, abandoned) = watch::channel(false);
        let hung_up = Arc::new(Notify::new());
        let handles = Handles { control: commands, interrupts: interrupted, hung_up: Arc::clone(&hung_up), abandoned };
        let (pending, phase, terminal) = (Pending::default(), Phase::Running, OurTerminal::Ours);
        (Self { signals, control, pending, hung_up, interrupts, abandon, location, phase, terminal }, handles)
    }

    /// Channel for commands from other sources. Neither these commands nor commands for signals have priority.
    pub(crate) fn commands(&self) -> mpsc::Sender<Control> {
        self.control.clone()
    }

    /// From now on, the terminal of rank 0 has the size of the launcher's terminal. `raw` is the launcher's terminal, if it is standard input.
    pub(crate) fn mirror_terminal(&mut self, raw: Option<RawTerminal>) {
        self.terminal = OurTerminal::Mirrored(raw);
        // The size may have changed since the request for the launch.
        self.pass_on_size();
    }

    /// Forwards signals while it is polled.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            let deadline = match self.phase {
                Phase::Killed { deadline } => Some(deadline),
                Phase::Running | Phase::Ending | Phase::Abandoned => None,
            };
            tokio::select! {
                biased;
                () = deliver(&self.control, &mut self.pending), if !self.pending.is_empty() => {}
                signal = self.signals.next() => self.on_signal(signal).await,
                () = self.hung_up.notified() => self.end_in_order(Signal::SIGPIPE),
                () = until(deadline) => {
                    self.abandon.send_replace(true);
                    self.phase = Phase::Abandoned;
                }
            }
        }
    }

    async fn on_signal(&mut self, signal: Signal) {
        match (signal, self.phase) {
            (signal, Phase::Running) if ENDING.contains(&signal) => {
                self.end_in_order(signal);
                // The renderer may be gone already.
                let _ = self.interrupts.send(signal);
            }
            (signal, _) if ENDING.contains(&signal) => {
                self.pending.push(Command::Kill(signal as i32));
                if let Phase::Ending = self.phase {
                    self.phase = Phase::Killed { deadline: Instant::now() + LAST_WRITES };
                }
            }
            (Signal::SIGTSTP, _) => self.stop().await,
            (Signal::SIGWINCH, _) if matches!(self.terminal, OurTerminal::Mirrored(_)) => self.pass_on_size(),
            (Signal::SIGCONT, _) => {
                self.pending.push(Command::Signal(Signal::SIGCONT as i32));
                self.take_terminal_back();
            }
            (signal, _) => self.pending.push(Command::Signal(signal as i32)),
        }
    }

    fn pass_on_size(&mut self) {
        if let Some(size) = terminal::size() {
            self.pending.push(Command::ResizeTerminal(size));
        }
    }

    /// Restores the terminal after a stop of this process, because a shell used it meanwhile.
    fn take_terminal_back(&mut self) {
        if let OurTerminal::Mirrored(raw) = &self.terminal {
            // A terminal that is gone is detected by the end of its input.
            let _ = raw.as_ref().map_or(Ok(()), RawTerminal::enter);
            self.pass_on_size();
        }
    }

    fn end_in_order(&mut self, signal: Signal) {
        if let Phase::Running = self.phase {
            self.phase = Phase::Ending;
            self.pending.push(Command::End(signal as i32));
        }
    }

    /// Stops the ranks, then this process. Returns when this process is continued; the SIGCONT then continues the ranks.
    async fn stop(&mut self) {
        self.pending.push(Command::Signal(Signal::SIGSTOP as i32));
        let (control, pending) = (&self.control, &mut self.pending);
        let taken = async {
            while !pending.is_empty() {
                deliver(control, pending).await;
            }
            // The session has stopped the ranks when it has taken all commands out of the queue.
            drop(control.reserve_many(control.max_capacity()).await);
        };
        // A session that takes no commands must not prevent the stop of this process.
        let _ = timeout(STOPPING, taken).await;
        if self.location == RankLocation::Cluster {
            sleep(STOPPING).await;
        }
        if let OurTerminal::Mirrored(Some(raw)) = &self.terminal {
            raw.leave();
        }
        // Cannot fail: SIGSTOP is a signal, and a process may signal itself.
        let _ = raise(Signal::SIGSTOP);
    }
}

/// Sends the oldest pending command to the launch when the channel has space. Drops all commands if the launch is over. Cancel-safe.
async fn deliver(control: &mpsc::Sender<Control>, pending: &mut Pending) {
    match control.reserve().await {
        Ok(room) => {
            if let Some(command) = pending.pop() {
                room.send(command.into());
            }
        }
        Err(_) => *pending = Pending::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_console::signals::TELLING;

    /// Forwards `signals` until no more events occur. Returns the commands of the launch, and true if the output was abandoned.
    fn forwarded(signals: &[Signal], hang_up: bool) -> (String, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (sender, receiver) = mpsc::unbounded_channel();
            signals.iter().for_each(|&signal| sender.send(signal).unwrap());
            let (forwarder, mut handles) = SignalForwarder::new(EarlySignals::fed_by(receiver), RankLocation::Local);
            if hang_up {
                handles.hung_up.notify_one();
            }
            let enough = 2 * LAST_WRITES;
            assert!(timeout(enough, forwarder.run()).await.is_err());
            let mut commands = Vec::new();
            while let Ok(control) = handles.control.try_recv() {
                commands.push(control);
            }
            (shown(&commands), *handles.abandoned.borrow())
        })
    }

    /// Debug form for comparisons, because a control can contain a reply channel.
    fn shown(commands: &[Control]) -> String {
        format!("{commands:?}")
    }

    #[test]
    fn one_ends_in_order_two_end_at_once() {
        let (int, term) = (Signal::SIGINT as i32, Signal::SIGTERM as i32);
        assert_eq!(forwarded(&[Signal::SIGINT], false), (shown(&[Control::End(int)]), false));
        let twice = shown(&[Control::End(int), Control::Kill(int)]);
        assert_eq!(forwarded(&[Signal::SIGINT, Signal::SIGINT], false), (twice, true));
        let other = shown(&[Control::End(int), Control::Kill(term)]);
        assert_eq!(forwarded(&[Signal::SIGINT, Signal::SIGTERM], false), (other, true));
    }

    #[test]
    fn other_signals_are_passed_on() {
        let (usr1, cont) = (Signal::SIGUSR1 as i32, Signal::SIGCONT as i32);
        let expected = shown(&[Control::Signal(usr1), Control::Signal(cont)]);
        assert_eq!(forwarded(&[Signal::SIGUSR1, Signal::SIGCONT], false), (expected, false));
    }

    #[test]
    fn closed_output_ends_in_order_like_sigpipe() {
        assert_eq!(forwarded(&[], true), (shown(&[Control::End(Signal::SIGPIPE as i32)]), false));
    }

    #[test]
    fn a_session_that_takes_no_commands_does_not_stop_us() {
        let (commands, abandoned) = forwarded(&[Signal::SIGUSR1; 20], false);
        assert_eq!(commands.matches("Signal").count(), COMMANDS);
        assert!(!abandoned);
    }

    /// Resizing a window sends dozens of SIGWINCH, and the launch may be slow to receive commands.
    #[tokio::test(start_paused = true)]
    async fn a_burst_of_window_changes_does_not_push_ctrl_c_out_of_the_queue() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let burst = std::iter::repeat_n(Signal::SIGWINCH, 50).chain([Signal::SIGINT, Signal::SIGINT]);
        burst.for_each(|signal| sender.send(signal).unwrap());
        let (forwarder, mut handles) = SignalForwarder::new(EarlySignals::fed_by(receiver), RankLocation::Local);
        let commands = async {
            sleep(LAST_WRITES).await;
            let mut commands = Vec::new();
            while let Ok(Some(control)) = timeout(LAST_WRITES, handles.control.recv()).await {
                commands.push(control);
            }
            shown(&commands)
        };
        let commands = tokio::select! {
            commands = commands => commands,
            never = forwarder.run() => match never {},
        };
        assert!(commands.ends_with("End(2), Kill(2)]"), "{commands}");
        assert_eq!(commands.matches("Signal").count(), COMMANDS + 1, "window changes are merged: {commands}");
    }

    #[test]
    fn a_third_interrupt_kills_again_and_waits_for_nobody() {
        let expected = shown(&[Control::End(2), Control::Kill(2), Control::Kill(2)]);
        assert_eq!(forwarded(&[Signal::SIGINT; 3], false), (expected, true));
    }

    #[test]
    fn every_signal_that_ends_a_program_ends_the_launch() {
        for signal in ENDING {
            let number = signal as i32;
            assert_eq!(forwarded(&[signal], false).0, shown(&[Control::End(number)]), "{signal}");
            assert_eq!(
                forwarded(&[signal; 2], false).0,
                shown(&[Control::End(number), Control::Kill(number)]),
                "{signal}"
            );
        }
    }

    #[test]
    fn every_forwarded_signal_reaches_the_ranks_as_it_is() {
        for signal in TELLING.into_iter().chain(ON_TERMINAL) {
            assert_eq!(forwarded(&[signal], false), (shown(&[Control::Signal(signal as i32)]), false), "{signal}");
        }
    }

    #[test]
    fn signals_are_forwarded_while_the_launch_ends() {
        let expected = shown(&[Control::End(2), Control::Signal(10)]);
        assert_eq!(forwarded(&[Signal::SIGINT, Signal::SIGUSR1], false), (expected, false));
    }

    #[test]
    fn output_that_is_closed_while_the_launch_ends_changes_nothing() {
        assert_eq!(forwarded(&[Signal::SIGINT], true), (shown(&[Control::End(2)]), false));
    }

    /// Commands of a launch that is over have no receiver.
    #[tokio::test(start_paused = true)]
    async fn signals_after_the_end_of_the_launch_are_dropped() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (forwarder, handles) = SignalForwarder::new(EarlySignals::fed_by(receiver), RankLocation::Local);
        drop(handles.control);
        [Signal::SIGINT, Signal::SIGUSR1].into_iter().for_each(|signal| sender.send(signal).unwrap());
        assert!(timeout(LAST_WRITES, forwarder.run()).await.is_err(), "it goes on, and forwards nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn the_user_is_told_of_the_first_interrupt_only() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (forwarder, mut handles) = SignalForwarder::new(EarlySignals::fed_by(receiver), RankLocation::Cluster);
        [Signal::SIGUSR1, Signal::SIGTERM, Signal::SIGINT, Signal::SIGINT]
            .into_iter()
            .for_each(|signal| sender.send(signal).unwrap());
        assert!(timeout(LAST_WRITES, forwarder.run()).await.is_err());
        assert_eq!(
            (handles.interrupts.try_recv().ok(), handles.interrupts.try_recv().ok()),
            (Some(Signal::SIGTERM), None)
        );
    }
}
