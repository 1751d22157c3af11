//! Files that ranks read as their standard input. A separate thread opens them before the first rank starts, because the open of a pipe
//! without a writer blocks. Meanwhile the launch can be ended.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rank_spawner::Stdio;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Runner;
use super::prepare::unplanned;
use crate::cause::StartClass;
use crate::machine::jobs::JobNumber;
use crate::machine::{Phase, PrepareFailure};
use crate::plan::{InputFile, PlanError};

/// Opened files of the launched job: one for each rank here, by local rank.
pub(super) type OpenedFiles = Result<Vec<Arc<OwnedFd>>, PlanError>;

/// Files of the launched job that are being opened. Spawned jobs have none.
#[derive(Default)]
pub(super) struct InputFiles {
    opening: Option<oneshot::Receiver<OpenedFiles>>,
}

impl InputFiles {
    /// Begins to open these files.
    pub(super) fn open(&mut self, files: Vec<InputFile>) {
        let (tell, opened) = oneshot::channel();
        self.opening = Some(opened);
        // The receiver may be gone.
        let on_thread = move || drop(tell.send(files.into_iter().map(InputFile::open).collect()));
        // Without a thread the closure is dropped with its sender, which ends the wait. The files are not opened here, because that would
        // block the session.
        let _ = thread::Builder::new().name("input-files".to_owned()).spawn(on_thread);
    }

    /// Waits until all files are open, or one cannot be opened. Without files it waits indefinitely.
    pub(super) async fn opened(&mut self) -> OpenedFiles {
        let Some(opening) = &mut self.opening else { return std::future::pending().await };
        let opened = opening.await.unwrap_or(Err(PlanError::NoThread));
        self.opening = None;
        opened
    }
}

impl Runner {
    /// Completes the preparation of the launched job if its files could be opened.
    pub(super) fn on_input_files(&mut self, opened: OpenedFiles) {
        let prepared = opened.map_err(unplanned).map(|files| {
            let commands = self.commands.get_mut(&JobNumber::LAUNCHED).into_iter().flatten();
            for (command, file) in commands.zip(files) {
                command.stdin = Stdio::Fd(file);
            }
        });
        self.machine.on_job_prepared(JobNumber::LAUNCHED, prepared, Instant::now().into_std());
    }

    /// Stops the wait for files that are being opened, if the launch ends. A thread that a pipe blocks is left running.
    pub(super) fn give_up_input_files(&mut self) {
        if self.input_files.opening.is_none() || !matches!(self.machine.phase(), Phase::Ending(_)) {
            return;
        }
        self.input_files = InputFiles::default();
        let reason = "the launch ended before a file for standard input could be opened".to_owned();
        let failure = PrepareFailure { class: StartClass::System, reason };
        self.machine.on_job_prepared(JobNumber::LAUNCHED, Err(failure), Instant::now().into_std());
    }
}
