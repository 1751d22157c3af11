//! Output of a rank for clients of PMIx servers, on this node or other nodes, in addition to its path to the launch.

use std::sync::Arc;
use std::time::Duration;

use pmi_core::ids::LocalRank;
use pmi_transport::task;
use pmix_core::Seat;
use pmix_core::driver::Driver;
use pmix_core::wire::forwarding::channel;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::servers::{Servers, pass_on};
use crate::event::Stream;
use crate::machine::jobs::JobNumber;
use crate::session_io::Control;

/// Time after the last rank in which clients can take their waiting output.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// Interval between the checks for this.
const CHECK: Duration = Duration::from_millis(5);

/// A rank at the PMIx server, from which clients pull its output.
#[derive(Clone)]
pub(super) struct Tap {
    pub(super) driver: Arc<Driver>,
    pub(super) seat: Seat,
}

impl Tap {
    /// Passes on output of the rank. It waits for no client.
    pub(super) fn wrote(&self, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.driver.rank_wrote(self.seat, channel_of(stream), bytes);
        }
    }

    /// Passes on the end of a stream.
    pub(super) fn ended(&self, stream: Stream) {
        self.driver.rank_wrote(self.seat, channel_of(stream), &[]);
    }
}

impl Servers {
    /// Returns a rank's output at the PMIx server, if there is one.
    pub(super) fn tap(&self, job: JobNumber, local: LocalRank) -> Option<Tap> {
        let pmix = self.jobs.get(&job)?.pmix.as_ref()?;
        Some(Tap { driver: Arc::clone(&pmix.driver), seat: pmix.seat(local) })
    }

    /// Waits a moment for clients that have pulled output to take their waiting output.
    pub(super) async fn let_output_be_taken(&self) {
        let Some(pmix) = &self.pmix else { return };
        let until = Instant::now() + LAST_MOMENT;
        while pmix.is_forwarding() && Instant::now() < until {
            sleep(CHECK).await;
        }
    }
}

/// Questions of other nodes while the session ends, from nodes that need the last output of ranks here.
pub(super) struct LastQuestions(Option<Answering>);

struct Answering {
    driver: Arc<Driver>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Servers {
    /// Takes over the control channel of a session that ends. If no other node needs output of ranks here, the end of the channel answers its
    /// questions. Returns the other control messages that arrived before.
    pub(super) fn last_questions(&self, mut control: mpsc::Receiver<Control>) -> (LastQuestions, Vec<Control>) {
        let driver = self.pmix.clone().filter(|driver| driver.is_asked_for_output());
        if driver.is_none() {
            control.close();
        }
        let (mut orders, mut questions) = (Vec::new(), Vec::new());
        while let Ok(order) = control.try_recv() {
            let list = if matches!(order, Control::Question { .. }) { &mut questions } else { &mut orders };
            list.push(order);
        }
        let answering = driver.map(|driver| {
            let (stop, stopped) = oneshot::channel();
            let task = task::spawn(answer_until(stopped, Arc::clone(&driver), questions, control));
            Answering { driver, stop, task }
        });
        (LastQuestions(answering), orders)
    }
}

impl LastQuestions {
    /// Ends the answers: clients that wait for more output receive its end.
    pub(super) async fn end(self) {
        let Some(Answering { driver, stop, task }) = self.0 else { return };
        driver.end_output();
        // The task ends by itself if no message can arrive any more.
        let _ = stop.send(());
        let _ = timeout(LAST_MOMENT, task).await;
    }
}

async fn answer_until(
    mut stopped: oneshot::Receiver<()>,
    driver: Arc<Driver>,
    first: Vec<Control>,
    mut control: mpsc::Receiver<Control>,
) {
    let mut answers = JoinSet::new();
    let mut answer = |control| {
        let Control::Question { question, reply } = control else { return };
        answers.spawn(task::boxed(pass_on(Some(driver.question(&question)), reply)));
    };
    first.into_iter().for_each(&mut answer);
    loop {
        tokio::select! {
            Some(control) = control.recv() => answer(control),
            _ = &mut stopped => break,
        }
    }
    drop(control);
    while answers.join_next().await.is_some() {}
}

fn channel_of(stream: Stream) -> u16 {
    match stream {
        Stream::Stdout => channel::STDOUT,
        Stream::Stderr => channel::STDERR,
    }
}
