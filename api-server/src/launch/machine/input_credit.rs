//! The launch's standard input on its way from the client to the nodes whose ranks read it. Nothing here grows: the client
//! may send what it was granted, and a node is sent what it has room for.

use std::collections::VecDeque;

use bytes::Bytes;

/// Windows of unread input that are kept of clients that have left.
const WINDOWS_MAX: u64 = 16;

/// The input between client and nodes. With several reading nodes, the slowest one sets the pace.
#[derive(Debug)]
pub(crate) struct InputCredit {
    readers: Vec<Reader>,
    /// Came from a client and was not passed on, because a reader has no room.
    waiting: VecDeque<Bytes>,
    ended: End,
    /// Bytes that may be under way to a node; also those that a client begins with.
    window: u64,
    /// Bytes that the client may still send.
    allowance: u64,
    /// Bytes passed on, or thrown away because nobody reads them.
    passed: u64,
}

#[derive(Debug)]
struct Reader {
    node: u32,
    taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The client has said so; nodes have not been told.
    Announced,
    PassedOn,
}

/// Consequences of a change of the input.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// To be sent to all readers, in order.
    pub pieces: Vec<Bytes>,
    /// Then they are to be told that nothing follows.
    pub end: bool,
    /// The client may send so much more.
    pub credit: u64,
}

/// The client sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sent} bytes of input were sent, and {allowed} were granted")]
pub(crate) struct TooMuch {
    pub sent: u64,
    pub allowed: u64,
}

impl InputCredit {
    /// Input for the ranks of these nodes; for none of them, it is thrown away.
    pub(crate) fn new(readers: &[u32], window: u64) -> Self {
        Self {
            readers: readers.iter().map(|&node| Reader { node, taken: 0 }).collect(),
            waiting: VecDeque::new(),
            ended: End::Open,
            window,
            allowance: 0,
            passed: 0,
        }
    }

    /// The nodes whose ranks read.
    pub(crate) fn readers(&self) -> impl Iterator<Item = u32> {
        self.readers.iter().map(|reader| reader.node)
    }

    /// A client takes over. It may send a window, as every client takes for granted; but clients that come and go while no rank
    /// reads cannot pile up more than [`WINDOWS_MAX`] of them.
    pub(crate) fn attach(&mut self) {
        let kept: u64 = self.waiting.iter().map(|piece| piece.len() as u64).sum();
        self.allowance = if kept < WINDOWS_MAX * self.window { self.window } else { 0 };
    }

    /// Takes a piece of input.
    ///
    /// # Errors
    /// Refuses more than was granted.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<Flow, TooMuch> {
        let sent = piece.len() as u64;
        let allowed = self.allowance;
        if sent > allowed {
            return Err(TooMuch { sent, allowed });
        }
        self.allowance -= sent;
        if self.ended == End::Open && !piece.is_empty() {
            self.waiting.push_back(piece);
        }
        Ok(self.flow())
    }

    /// The client's input is at its end.
    pub(crate) fn end(&mut self) -> Flow {
        if self.ended == End::Open {
            self.ended = End::Announced;
        }
        self.flow()
    }

    /// The ranks of a node have read so many bytes more.
    pub(crate) fn on_taken(&mut self, node: u32, bytes: u64) -> Flow {
        let passed = self.passed;
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.node == node) {
            // A node cannot have read what it was not sent.
            reader.taken = reader.taken.saturating_add(bytes).min(passed);
        }
        self.flow()
    }

    /// A node reads no more.
    pub(crate) fn on_gone(&mut self, node: u32) -> Flow {
        self.readers.retain(|reader| reader.node != node);
        self.flow()
    }

    /// Passes on what the slowest reader has room for, and grants the client as much again.
    fn flow(&mut self) -> Flow {
        let mut flow = Flow::default();
        let mut room = match self.readers.iter().map(|reader| reader.taken).min() {
            Some(taken) => self.window.saturating_sub(self.passed - taken),
            None => u64::MAX,
        };
        while room > 0 {
            let Some(mut piece) = self.waiting.pop_front() else { break };
            if piece.len() as u64 > room {
                self.waiting.push_front(piece.split_off(room as usize));
            }
            room -= piece.len() as u64;
            self.passed += piece.len() as u64;
            flow.credit += piece.len() as u64;
            if !self.readers.is_empty() {
                flow.pieces.push(piece);
            }
        }
        if self.ended == End::Announced && self.waiting.is_empty() {
            self.ended = End::PassedOn;
            flow.end = true;
        }
        self.allowance += flow.credit;
        flow
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(bytes: usize) -> Bytes {
        vec![b'i'; bytes].into()
    }

    fn lengths(flow: &Flow) -> Vec<usize> {
        flow.pieces.iter().map(Bytes::len).collect()
    }

    #[test]
    fn the_slowest_reader_sets_the_pace() {
        let mut input = InputCredit::new(&[0, 2], 100);
        input.attach();
        let flow = input.push(piece(100)).unwrap();
        assert_eq!((lengths(&flow), flow.credit), (vec![100], 100));
        let flow = input.push(piece(80)).unwrap();
        assert_eq!((lengths(&flow), flow.credit), (vec![], 0));
        assert_eq!(input.on_taken(0, 100), Flow::default());
        let flow = input.on_taken(2, 30);
        assert_eq!((lengths(&flow), flow.credit), (vec![30], 30));
        // A node that has ended is not waited for.
        let flow = input.on_gone(2);
        assert_eq!((lengths(&flow), flow.credit), (vec![50], 50));
    }

    #[test]
    fn the_end_comes_after_all_input() {
        let mut input = InputCredit::new(&[0], 10);
        input.attach();
        assert!(!input.push(piece(10)).unwrap().end);
        assert_eq!(input.push(piece(5)).unwrap().credit, 0);
        assert!(!input.end().end);
        let flow = input.on_taken(0, 10);
        assert_eq!((lengths(&flow), flow.end), (vec![5], true));
        assert!(!input.end().end, "said once");
    }

    #[test]
    fn more_than_was_granted_is_refused() {
        let mut input = InputCredit::new(&[0], 10);
        assert_eq!(input.push(piece(1)), Err(TooMuch { sent: 1, allowed: 0 }));
        input.attach();
        assert_eq!(input.push(piece(11)), Err(TooMuch { sent: 11, allowed: 10 }));
    }

    #[test]
    fn what_nobody_reads_is_taken_and_forgotten() {
        let mut input = InputCredit::new(&[], 10);
        input.attach();
        for _ in 0..5 {
            let flow = input.push(piece(10)).unwrap();
            assert_eq!((lengths(&flow), flow.credit), (vec![], 10));
        }
    }

    #[test]
    fn clients_that_come_and_go_pile_up_no_more_than_some_windows() {
        let mut input = InputCredit::new(&[0], 10);
        let mut sent = 0;
        for _ in 0..100 {
            input.attach();
            while input.push(piece(5)).is_ok() {
                sent += 5;
            }
        }
        assert_eq!(sent, 10 + 10 * WINDOWS_MAX, "one window is under way, the others wait");
    }

    #[test]
    fn nothing_follows_the_end() {
        let mut input = InputCredit::new(&[0], 100);
        input.attach();
        assert!(input.end().end);
        assert_eq!(input.push(piece(5)).unwrap(), Flow::default(), "it is taken, and means nothing");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Taken(u32, u64),
        Gone(u32),
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..60_usize).prop_map(Step::Push),
            6 => (0..3_u32, 0..80_u64).prop_map(|(node, bytes)| Step::Taken(node, bytes)),
            1 => (0..3_u32).prop_map(Step::Gone),
            1 => Just(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn readers_get_the_input_in_order_and_the_client_never_more_than_a_window(
            steps in prop::collection::vec(step(), 0..80),
        ) {
            const WINDOW: u64 = 100;
            let mut input = InputCredit::new(&[0, 1, 2], WINDOW);
            input.attach();
            let (mut sent, mut passed, mut ends) = (0_u64, 0_u64, 0);
            let (mut allowance, mut taken) = (WINDOW, [0_u64; 3]);
            for step in steps {
                let flow = match step {
                    Step::Push(bytes) => {
                        // The bytes count up, so that their order is seen.
                        let piece: Vec<u8> = (0..bytes as u64).map(|index| (sent + index) as u8).collect();
                        let pushed = input.push(piece.into());
                        prop_assert_eq!(pushed.is_ok(), bytes as u64 <= allowance);
                        let Ok(flow) = pushed else { continue };
                        allowance -= bytes as u64;
                        sent += if input.ended == End::Open { bytes as u64 } else { 0 };
                        flow
                    }
                    Step::Taken(node, bytes) => {
                        taken[node as usize] = (taken[node as usize] + bytes).min(passed);
                        input.on_taken(node, bytes)
                    }
                    Step::Gone(node) => input.on_gone(node),
                    Step::End => input.end(),
                };
                let bytes: Vec<u8> = flow.pieces.iter().flatten().copied().collect();
                prop_assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == (passed + index as u64) as u8));
                passed += flow.credit;
                allowance += flow.credit;
                ends += u32::from(flow.end);
                prop_assert!(allowance <= WINDOW && passed <= sent);
                for node in input.readers() {
                    prop_assert!(passed - taken[node as usize] <= WINDOW, "more than node {} has room for", node);
                }
                prop_assert!(ends == 0 || passed == sent, "the end comes after all input");
            }
            // Those who read on get all of it.
            input.end();
            for node in (0..3).cycle().take(9) {
                passed += input.on_taken(node, u64::MAX).credit;
            }
            prop_assert_eq!((passed, input.ended), (sent, End::PassedOn));
            prop_assert!(ends <= 1);
        }
    }

    #[test]
    fn a_node_cannot_claim_to_have_read_what_it_was_not_sent() {
        let mut input = InputCredit::new(&[0], 10);
        input.attach();
        assert_eq!(input.on_taken(0, u64::MAX), Flow::default());
        assert_eq!(lengths(&input.push(piece(10)).unwrap()), [10]);
        assert_eq!(lengths(&input.push(piece(10)).unwrap()), [0; 0]);
    }
}
