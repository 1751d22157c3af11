//! Files that ranks read as their standard input: opened on a thread of their own before the first rank starts, as a pipe without a writer
//! keeps whoever opens it. Meanwhile the launch can be ended.

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

/// Files of the launched job that were opened: one for each rank here, by local rank.
pub(super) type OpenedFiles = Result<Vec<Arc<OwnedFd>>, PlanError>;

/// Files of the launched job that are being opened. Spawned jobs read none.
#[derive(Default)]
pub(super) struct InputFiles {
    opening: Option<oneshot::Receiver<OpenedFiles>>,
}

impl InputFiles {
    /// Begins to open these files.
    pub(super) fn open(&mut self, files: Vec<InputFile>) {
        let (tell, opened) = oneshot::channel();
        self.opening = Some(opened);
        // Nobody may wait for it any more.
        let on_thread = move || drop(tell.send(files.into_iter().map(InputFile::open).collect()));
        // Where there can be no thread it ends with what it holds, and so do those who wait. Not opened here: that would block the session.
        let _ = thread::Builder::new().name("input-files".to_owned()).spawn(on_thread);
    }

    /// Waits until all are open, or one cannot be opened; for ever where none is being opened.
    pub(super) async fn opened(&mut self) -> OpenedFiles {
        let Some(opening) = &mut self.opening else { return std::future::pending().await };
        let opened = opening.await.unwrap_or(Err(PlanError::NoThread));
        self.opening = None;
        opened
    }
}

impl Runner {
    /// The launched job is prepared now, if its files could be opened.
    pub(super) fn on_input_files(&mut self, opened: OpenedFiles) {
        let prepared = opened.map_err(unplanned).map(|files| {
            let commands = self.commands.get_mut(&JobNumber::LAUNCHED).into_iter().flatten();
            for (command, file) in commands.zip(files) {
                command.stdin = Stdio::Fd(file);
            }
        });
        self.machine.on_job_prepared(JobNumber::LAUNCHED, prepared, Instant::now().into_std());
    }

    /// Waits no longer for files that are being opened, if the launch ends. A thread that is kept by a pipe is left behind.
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
