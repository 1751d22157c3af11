//! Texts that ranks write through their PMIx server, such as Open MPI's help messages. They become output of the launch.

use pmix_core::driver::RankText;

use super::Runner;
use crate::event::{Event, Output, Stream};

impl Runner {
    /// Queues a text as output of its rank, and confirms it to its server, which then accepts more texts.
    pub(super) fn on_text(&mut self, text: RankText) {
        if let Some(server) = &self.servers.pmix {
            server.heard(text.text.len());
        }
        self.queue_text(text);
    }

    /// Queues the texts that have arrived: texts of a rank precede its exit. It confirms no text, so their number stays bounded while
    /// tools still write.
    pub(super) fn take_texts(&mut self) {
        self.carry_out();
        while let Ok(text) = self.inputs.texts.try_recv() {
            self.queue_text(text);
        }
    }

    /// Queues a text as output of its rank, in pieces like output of a pipe.
    pub(super) fn queue_text(&mut self, RankText { job, rank, on_stderr, text }: RankText) {
        let job = self.servers.job_of(job);
        let rank = job.map_or(rank, |job| self.machine.jobs().get(job).shown(rank));
        let stream = if on_stderr { Stream::Stderr } else { Stream::Stdout };
        self.outbox.extend(Output::pieces(rank, stream, text).map(Event::Output));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmi_core::ids::Rank;
    use pmix_core::JobIndex;
    use tokio::sync::mpsc;

    use super::*;
    use crate::sample;
    use crate::session_io::SessionIo;

    #[tokio::test]
    async fn a_long_text_comes_in_pieces_as_output_does() {
        let ((events, _happened), (_orders, control)) = (mpsc::channel(64), mpsc::channel(1));
        let spec = sample::spec(1);
        let io = SessionIo::on_one_node(&spec, events, control).unwrap();
        let mut runner = Runner::new(spec, io);
        let line = [&b"x".repeat(1000)[..], b"\n"].concat();
        let text = [line.repeat(1000), vec![b'y'; 5 << 20]].concat();
        runner.on_text(RankText { job: JobIndex(0), rank: Rank(0), on_stderr: true, text: Bytes::from(text.clone()) });
        let pieces = runner.outbox.iter().map(|event| match event {
            Event::Output(Output { stream: Stream::Stderr, bytes, .. }) => bytes.clone(),
            other => panic!("{other:?}"),
        });
        let pieces: Vec<Bytes> = pieces.collect();
        assert!(pieces.concat() == text, "the pieces are not the text");
        assert!(pieces.iter().all(|piece| piece.len() <= Output::PIECE_MAX));
        let (whole, cut): (Vec<_>, Vec<_>) = pieces.iter().partition(|piece| piece.ends_with(b"\n"));
        assert_eq!((whole.len(), cut.len()), (16, 80), "a line is cut only where it is longer than a piece");
    }
}
