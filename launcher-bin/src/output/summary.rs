//! `--summary`: what a launch took, told at its end.

use std::time::Instant;

use hostlist::fold;
use lattice_session::event::{Event, Output, Report, Stream};
use pmi_core::ids::Rank;

use crate::formatting::{count, duration, size};
use crate::usage;

/// What is counted while a launch runs.
#[derive(Debug)]
pub(super) struct Summary {
    begun: Instant,
    /// The first rank that ended, and the last, with the times at which that was heard.
    ends: Option<[(Rank, Instant); 2]>,
    /// Bytes on standard output and on standard error.
    written: [u64; 2],
}

impl Summary {
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, ends: None, written: [0; 2] }
    }

    pub(super) fn event(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Output(Output { stream: Stream::Stdout, bytes, .. }) => self.written[0] += bytes.len() as u64,
            Event::Output(Output { stream: Stream::Stderr, bytes, .. }) => self.written[1] += bytes.len() as u64,
            Event::Exited { rank, .. } => {
                let first = self.ends.map_or((*rank, now), |[first, _]| first);
                self.ends = Some([first, (*rank, now)]);
            }
            _ => {}
        }
    }

    /// The lines of the summary.
    pub(super) fn lines(&self, hosts: &[String], report: &Report) -> Vec<String> {
        let ranks = count(report.exits.len() as u32, "rank");
        let mut lines = vec![format!("{ranks} on {} ran for {}", fold(hosts), duration(report.duration))];
        if let Some([first, last]) = self.ends.filter(|[first, last]| first.0 != last.0) {
            let after = |(rank, at): (Rank, Instant)| format!("{} (rank {rank})", duration(at - self.begun));
            lines.push(format!("the first rank ended after {}, the last one after {}", after(first), after(last)));
        }
        lines.extend(report.usage.map(usage::words));
        let [stdout, stderr] = self.written.map(size);
        lines.push(format!("written: {stdout} to standard output, {stderr} to standard error"));
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use lattice_session::event::Usage;
    use rank_spawner::RankExit;

    use super::*;

    #[test]
    fn times_resources_and_output_are_summed_up() {
        let begun = Instant::now();
        let mut summary = Summary::new(begun);
        let bytes = Bytes::from_static(&[b'x'; 2048]);
        for (rank, stream) in [(0, Stream::Stdout), (1, Stream::Stdout), (1, Stream::Stderr)] {
            let output = Output { rank: Rank(rank), stream, bytes: bytes.clone() };
            summary.event(&Event::Output(output), begun);
        }
        for (rank, seconds) in [(2, 1), (0, 2), (1, 4)] {
            let exited = Event::Exited { rank: Rank(rank), exit: RankExit::Code(0), reached: None };
            summary.event(&exited, begun + Duration::from_secs(seconds));
        }
        let exits = (0..3).map(|rank| (Rank(rank), RankExit::Code(0))).collect();
        let usage = Usage { user: Duration::from_secs(61), system: Duration::from_millis(250), peak_memory: 3 << 20 };
        let report = Report { exits, cause: None, duration: Duration::from_secs(4), usage: Some(usage) };
        assert_eq!(
            summary.lines(&["n0".to_owned(), "n1".to_owned()], &report),
            [
                "3 ranks on n[0-1] ran for 4 s",
                "the first rank ended after 1 s (rank 2), the last one after 4 s (rank 1)",
                "used: 1 min 1 s of processor time for programs, 0.3 s in the kernel; at most 3.0 MiB of memory in one process",
                "written: 4.0 KiB to standard output, 2.0 KiB to standard error",
            ]
        );
    }
}
