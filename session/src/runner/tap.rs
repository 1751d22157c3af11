//! Output of a rank as clients of the PMIx server may want it, beside its way to the launch.

use std::sync::Arc;
use std::time::Duration;

use pmi_core::ids::LocalRank;
use pmix_core::Seat;
use pmix_core::driver::Driver;
use pmix_core::wire::forwarding::channel;
use tokio::time::{Instant, sleep};

use super::servers::Servers;
use crate::event::Stream;
use crate::machine::jobs::JobNumber;

/// Time that clients have, behind the last rank, to take what waits for them.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// Interval between looks whether they have.
const CHECK: Duration = Duration::from_millis(5);

/// A rank at the PMIx server, where its output can be pulled.
#[derive(Clone)]
pub(super) struct Tap {
    pub(super) driver: Arc<Driver>,
    pub(super) seat: Seat,
}

impl Tap {
    /// The rank has written to a stream. Nobody who wants to have it is waited for.
    pub(super) fn wrote(&self, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.driver.rank_wrote(self.seat, channel_of(stream), bytes);
        }
    }

    /// Nothing more comes from a stream.
    pub(super) fn ended(&self, stream: Stream) {
        self.driver.rank_wrote(self.seat, channel_of(stream), &[]);
    }
}

impl Servers {
    /// A rank's output at the PMIx server, if there is one.
    pub(super) fn tap(&self, job: JobNumber, local: LocalRank) -> Option<Tap> {
        let pmix = self.jobs.get(job.0)?.pmix.as_ref()?;
        Some(Tap { driver: Arc::clone(&pmix.driver), seat: pmix.seat(local) })
    }

    /// Gives clients that have pulled output a moment to take what waits for them.
    pub(super) async fn let_output_be_taken(&self) {
        let Some(pmix) = &self.pmix else { return };
        let until = Instant::now() + LAST_MOMENT;
        while pmix.is_forwarding() && Instant::now() < until {
            sleep(CHECK).await;
        }
    }
}

fn channel_of(stream: Stream) -> u16 {
    match stream {
        Stream::Stdout => channel::STDOUT,
        Stream::Stderr => channel::STDERR,
    }
}
