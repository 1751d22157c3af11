//! Signals of this process become commands of the launch.
//!
//! ```text
//! SIGINT, SIGTERM, SIGHUP   the first ends the launch in order, the second at once
//! SIGTSTP (Ctrl-Z)          stops the ranks, then this process; SIGCONT continues all. Ctrl-Z without a shell that could: nothing
//! QUIT, USR1, USR2, ...     forwarded to the ranks
//! SIGWINCH                  where rank 0 has a terminal, gives that the size of ours
//! output closed             ends the launch in order, as SIGPIPE ends a program
//! ```
//!
//! Who sends a signal twice at once means it once ([`Signals`]). Commands that the launch has not taken yet wait
//! in [`Pending`]. Delivery belongs to the session or to the attach stream, the messages to the user to the renderer.

mod early;
mod pending;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::deadline::until;
use lattice_session::session_io::Control;
use nix::sys::signal::{Signal, raise};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use self::early::EarlySignals;
use self::pending::{Command, Pending};
use crate::signals::ENDING;
use crate::terminal::{self, RawTerminal};

/// Signals for the ranks, which all processes on a terminal get as well.
const ON_TERMINAL: [Signal; 2] = [Signal::SIGWINCH, Signal::SIGCONT];

/// Time for output to be written after the user ended the launch at once.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// Time for the ranks to be stopped before this process stops.
const STOPPING: Duration = Duration::from_millis(200);
/// Commands on their way to the launch; more wait in [`Pending`].
const COMMANDS: usize = 8;

/// Place of the ranks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankLocation {
    /// In this process's session: a command that has been taken out of the queue has reached them.
    Local,
    /// On the nodes of a cluster: such a command is on its way.
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

/// Relation of our terminal to one of a rank.
#[derive(Debug)]
enum OurTerminal {
    /// No rank has one.
    Ours,
    /// That of rank 0 has the size of ours; and where ours is our standard input, it is raw.
    Mirrored(Option<RawTerminal>),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// Asked to end in order.
    Ending,
    /// Ended at once; a slow reader of the output is waited for until the deadline.
    Killed {
        deadline: Instant,
    },
    /// No reader is waited for any more.
    Abandoned,
}

/// The other ends of a [`SignalForwarder`]'s channels.
#[derive(Debug)]
pub(crate) struct Handles {
    /// Commands for the launch.
    pub(crate) control: mpsc::Receiver<Control>,
    /// The signals by which the user ended the launch.
    pub(crate) interrupts: mpsc::UnboundedReceiver<Signal>,
    /// To be notified when nobody reads the output any more.
    pub(crate) hung_up: Arc<Notify>,
    /// True once no reader of the output shall be waited for any more.
    pub(crate) abandoned: watch::Receiver<bool>,
}

impl SignalForwarder {
    /// Forwards the signals that came while the launch started, and those that follow.
    pub(crate) fn new(signals: EarlySignals, location: RankLocation) -> (Self, Handles) {
        let (control, commands) = mpsc::channel(COMMANDS);
        let (interrupts, interrupted) = mpsc::unbounded_channel();
        let (abandon, abandoned) = watch::channel(false);
        let hung_up = Arc::new(Notify::new());
        let handles = Handles { control: commands, interrupts: interrupted, hung_up: Arc::clone(&hung_up), abandoned };
        let (pending, phase, terminal) = (Pending::default(), Phase::Running, OurTerminal::Ours);
        (Self { signals, control, pending, hung_up, interrupts, abandon, location, phase, terminal }, handles)
    }

    /// Way for commands of others, which wait for those of signals no more than those for them.
    pub(crate) fn commands(&self) -> mpsc::Sender<Control> {
        self.control.clone()
    }

    /// From now on the terminal of rank 0 has the size of ours, which is `raw` where it is our standard input.
    pub(crate) fn mirror_terminal(&mut self, raw: Option<RawTerminal>) {
        self.terminal = OurTerminal::Mirrored(raw);
        // It may have changed since the launch was asked for.
        self.pass_on_size();
    }

    /// Forwards signals for as long as it is polled.
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

    /// We were stopped, and a shell had the terminal meanwhile.
    fn take_terminal_back(&mut self) {
        if let OurTerminal::Mirrored(raw) = &self.terminal {
            // One that is gone tells by the end of its input.
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

    /// Stops the ranks, then this process; returns when somebody continues it, which SIGCONT then tells the ranks.
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
        // A session that takes no commands does not keep the user from stopping this process.
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

/// Hands the oldest pending command to the launch, once there is room; drops all commands of a launch that is over. Cancel-safe.
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
    use crate::signals::TELLING;

    /// Forwards `signals` until nothing more happens; returns the launch's commands, and whether the output was abandoned.
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

    /// A reply channel can be in a control, so that two of them are compared by their debug form.
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

    /// A window that is being resized sends dozens of SIGWINCH while the launch may be slow to take commands.
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

    /// Commands of a launch that is over have nobody to go to.
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
