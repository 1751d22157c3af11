//! Processes that were started. Each one is watched for its end, then served and read.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pmi_core::ids::Rank;
use pmi_transport::task;
use rank_spawner::{CpuSet, RankProcess, Terminal};
use tokio::time::Instant;

use super::Runner;
use super::pump::{Pump, Source};
use super::start::Streams;
use super::terminal::RankTerminal;
use crate::event::{Event, Notice, Stream};
use crate::machine::ranks::{Slot, SlotId};

impl Runner {
    /// Takes over a started process. Its end comes first, so that it is signalled and reaped in any case. Then come its PMI socket,
    /// its input and its output.
    pub(super) fn on_process(&mut self, mut process: RankProcess) {
        let now = Instant::now().into_std();
        let rank = process.rank;
        let Some((slot, processes)) = self.machine.ranks().slot_of(rank).zip(self.processes.as_mut()) else { return };
        let streams = Streams::take(&mut process);
        let pid = process.pid().as_raw().unsigned_abs();
        let (job, local) = (self.machine.ranks().get(slot).job, self.machine.ranks().get(slot).local);
        let planned = self.prepared.get(&job).and_then(|job| job.cpus.get(local.index())?.clone());
        let bound = planned.zip(process.given_cpus.take());
        processes.adopt(slot, process);
        let outputs = [(Stream::Stdout, streams.stdout), (Stream::Stderr, streams.stderr)];
        let outputs: Vec<_> = outputs.into_iter().filter_map(|(stream, pipe)| Some((stream, pipe?))).collect();
        self.machine.on_started(slot, pid, outputs.len() + usize::from(streams.terminal.is_some()), now);
        if let Some((planned, seen)) = bound {
            self.compare_cpus(rank, planned, seen);
        }
        if let Some(socket) = streams.pmi
            && let Err(error) = self.servers.connect(job, local, UnixStream::from(socket))
        {
            self.machine.on_not_served(slot, format!("rank {rank}: cannot watch its PMI socket: {error}"), now);
        }
        if let Some(pipe) = streams.stdin {
            self.stdin.add_reader(rank, pipe);
        }
        if let Some(terminal) = streams.terminal {
            self.serve_terminal(slot, rank, terminal);
        }
        for (stream, pipe) in outputs {
            match Source::new(pipe) {
                Ok(source) => self.pump(slot, stream, source, self.spec.settings.timeouts.prompt),
                Err(error) => {
                    self.machine.on_output_end(slot);
                    self.machine.on_not_served(slot, format!("rank {rank}: cannot watch its output: {error}"), now);
                }
            }
        }
    }

    /// Starts to read an output stream of a rank.
    fn pump(&mut self, slot: SlotId, stream: Stream, source: Source, prompt_after: Option<Duration>) {
        let &Slot { rank, job, local, .. } = self.machine.ranks().get(slot);
        let events = self.io.events.clone();
        let (extent, held) = (self.outputs.extent.subscribe(), self.outputs.report_held.clone());
        let rank_of_job = self.machine.jobs().get(job).ranks_here().get(local.index()).copied();
        let errors = rank_of_job.and_then(|rank| self.servers.library_errors(job, rank, stream));
        let tap = self.servers.tap(job, local);
        let pump = Pump { rank, stream, prompt_after, events, tap, errors, extent, held };
        self.outputs.pumps.spawn(task::boxed(async move {
            pump.run(source).await;
            slot
        }));
    }

    /// Reports the first rank here with other CPUs than planned: the kernel omits CPUs that a control group forbids.
    fn compare_cpus(&mut self, rank: Rank, planned: CpuSet, seen: CpuSet) {
        if planned != seen && !self.tells_of_cpus {
            self.tells_of_cpus = true;
            let node = self.spec.host(self.spec.node).to_owned();
            self.outbox.push_back(Event::Notice(Notice::BoundElsewhere { rank, node, planned, seen }));
        }
    }

    /// Serves the terminal of a rank: its output, its input, its size.
    fn serve_terminal(&mut self, slot: SlotId, rank: Rank, terminal: Terminal) {
        let terminal = match RankTerminal::new(terminal) {
            Ok(terminal) => Arc::new(terminal),
            Err(error) => {
                let reason = format!("rank {rank}: cannot watch its terminal: {error}");
                self.machine.on_output_end(slot);
                return self.machine.on_not_served(slot, reason, Instant::now().into_std());
            }
        };
        if let Some(processes) = &mut self.processes {
            processes.add_terminal(Arc::clone(&terminal));
        }
        self.stdin.add_terminal(rank, Arc::clone(&terminal));
        // Its bytes are not lines.
        self.pump(slot, Stream::Stdout, Source::Terminal(terminal), Some(Duration::ZERO));
    }
}
