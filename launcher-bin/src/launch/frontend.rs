//! The user's side of a launch: signals, output, and the exit code at its end. The callers decide where the ranks run.

use lattice_console::terminal::{Mode, RawTerminal};
use lattice_console::{Verbosity, exit};
use lattice_render::updates::UpdateSource;
use lattice_render::{Fault, OpenFiles, PreparedLaunch, Renderer, RendererChannels};
use lattice_session::event::Report;
use lattice_session::session_io::Control;
use lattice_session::settings::StdinTarget;
use tokio::sync::mpsc;

use super::LaunchError;
use super::acquisition::Acquisition;
use crate::signal_forwarder::{EarlySignals, Handles, RankLocation, SignalForwarder};

/// Channel for faults of the writers.
pub(super) type Faults = (mpsc::UnboundedSender<Fault>, mpsc::UnboundedReceiver<Fault>);

/// Signals and screen of one launch, wherever its ranks run.
pub(super) struct Frontend {
    forwarder: SignalForwarder,
    verbosity: Verbosity,
    pub(super) renderer: Renderer,
}

/// End of a launch for its client.
pub(super) enum End {
    /// No process of the launch is left.
    Over(Report),
    /// The user has left the launch by this signal. The launch continues.
    Left(i32),
}

impl Frontend {
    /// Forwards the signals of this process, and starts the writers. The receiver yields the user's commands.
    ///
    /// # Errors
    /// Fails if the standard streams of this process cannot be used.
    pub(super) fn new(
        launch: &PreparedLaunch,
        (signals, location): (EarlySignals, RankLocation),
        verbosity: Verbosity,
        files: OpenFiles,
        faults: Faults,
    ) -> Result<(Self, mpsc::Receiver<Control>), LaunchError> {
        let (forwarder, handles) = SignalForwarder::new(signals, location);
        let Handles { control, hung_up, interrupts, abandoned } = handles;
        let renderer =
            Renderer::start(launch, verbosity, files, RendererChannels { hung_up, interrupts, abandoned, faults })?;
        Ok((Self { forwarder, verbosity, renderer }, control))
    }

    /// Channel on which other tasks send commands to the launch.
    pub(super) fn commands(&self) -> mpsc::Sender<Control> {
        self.forwarder.commands()
    }

    /// Connects the terminal of this process to that of rank 0, if the rank has one.
    ///
    /// # Errors
    /// Fails if the terminal of this process is gone.
    pub(super) fn hand_terminal_over(&mut self, launch: &PreparedLaunch) -> Result<(), LaunchError> {
        if let StdinTarget::Terminal(_) = launch.placed.settings.stdin {
            let raw = RawTerminal::of_input(Mode::Raw)?;
            if raw.is_some() {
                self.renderer.write_to_raw_terminal();
            }
            self.forwarder.mirror_terminal(raw);
        }
        Ok(())
    }

    /// Shows the updates of `source` until `work` has ended; returns the exit code.
    ///
    /// # Errors
    /// Fails if `work` does.
    pub(super) async fn run(
        self,
        launch: &PreparedLaunch,
        source: impl UpdateSource,
        work: impl Future<Output = Result<End, LaunchError>>,
    ) -> Result<u8, LaunchError> {
        let Self { forwarder, verbosity, mut renderer } = self;
        let source = Acquisition::new(source, launch, forwarder.commands(), verbosity);
        let shown = async {
            renderer.open(launch).await;
            let (end, ()) = tokio::join!(work, renderer.run(source));
            match end {
                Ok(End::Over(report)) => Ok(renderer.finish(&report).await),
                Ok(End::Left(signal)) => {
                    renderer.abandon().await;
                    Ok(exit::by_signal(signal))
                }
                Err(error) => {
                    renderer.abandon().await;
                    Err(error)
                }
            }
        };
        tokio::select! {
            code = shown => code,
            never = forwarder.run() => match never {},
        }
    }
}
