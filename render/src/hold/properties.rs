//! Properties for any sequence of pieces: no byte is lost, no line is torn, and the order within each source is kept.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// One input of a place.
#[derive(Clone, Debug)]
enum Input {
    Piece(u32, Stream, String),
    Message(String),
    End(u32),
    Pause(u64),
}

const RANKS: u32 = 4;

fn text() -> impl Strategy<Value = String> {
    // Letters and line ends. The texts are short, so that many lines stay open.
    "[a-c\n]{1,6}"
}

fn input() -> impl Strategy<Value = Input> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    prop_oneof![
        8 => (0..RANKS, stream, text()).prop_map(|(rank, stream, text)| Input::Piece(rank, stream, text)),
        1 => "[x-z]{1,4}".prop_map(|text| Input::Message(text + "\n")),
        1 => (0..RANKS).prop_map(Input::End),
        2 => (0..300_u64).prop_map(Input::Pause),
    ]
}

/// Steps of a place, and the text that each source wrote.
#[derive(Default)]
struct Outcome {
    steps: Vec<Step>,
    said: HashMap<Source, String>,
}

/// Replays `inputs`. A rank that has ended writes nothing more, because its pipes are read until empty before its end is reported.
fn played(inputs: &[Input]) -> Outcome {
    let mut hold = LineHold::default();
    let mut now = Instant::now();
    let mut outcome = Outcome::default();
    let mut ended = [false; RANKS as usize];
    for input in inputs {
        let (source, text) = match input {
            Input::Piece(rank, ..) if ended[*rank as usize] => continue,
            Input::Piece(rank, stream, text) => (Source::Rank(Rank(*rank), *stream), text),
            Input::Message(text) => (Source::Lattice, text),
            Input::End(rank) => {
                ended[*rank as usize] = true;
                hold.rank_ended(Rank(*rank), now, &mut outcome.steps);
                continue;
            }
            Input::Pause(milliseconds) => {
                now += Duration::from_millis(*milliseconds);
                hold.tick(now, &mut outcome.steps);
                continue;
            }
        };
        outcome.said.entry(source).or_default().push_str(text);
        let piece = Piece { source, bytes: Bytes::copy_from_slice(text.as_bytes()) };
        hold.push(piece, now, &mut outcome.steps);
    }
    hold.finish(now, &mut outcome.steps);
    outcome
}

fn bytes_of(piece: &Piece) -> &str {
    std::str::from_utf8(&piece.bytes).unwrap()
}

proptest! {
    #[test]
    fn nothing_is_lost_and_the_order_of_each_source_is_kept(inputs in vec(input(), 0..40)) {
        let outcome = played(&inputs);
        let mut written: HashMap<Source, String> = HashMap::new();
        for step in &outcome.steps {
            if let Step::Piece(piece, _) = step {
                written.entry(piece.source).or_default().push_str(bytes_of(piece));
            }
        }
        written.retain(|_, text| !text.is_empty());
        prop_assert_eq!(written, outcome.said);
    }

    /// Each line of the place has bytes of one source only.
    #[test]
    fn no_line_is_torn_by_another_source(inputs in vec(input(), 0..40)) {
        let mut open: Option<Source> = None;
        for step in played(&inputs).steps {
            match step {
                Step::LineEnd => {
                    prop_assert!(open.is_some(), "an empty line was made");
                    open = None;
                }
                Step::Piece(piece, start) => {
                    if let Some(source) = open {
                        prop_assert_eq!(source, piece.source);
                        prop_assert_eq!(start, Start::Middle);
                    } else {
                        prop_assert_ne!(start, Start::Middle);
                    }
                    let text = bytes_of(&piece);
                    if !text.is_empty() {
                        open = (!text.ends_with('\n')).then_some(piece.source);
                    }
                }
            }
        }
    }

    /// Only the rest of a line that was given up is marked as resumed.
    #[test]
    fn the_rest_of_a_line_that_was_given_up_is_marked(inputs in vec(input(), 0..40)) {
        let mut open: Option<Source> = None;
        let mut given_up: HashMap<Source, bool> = HashMap::new();
        for step in played(&inputs).steps {
            match step {
                Step::LineEnd => {
                    given_up.insert(open.take().expect("an open line"), true);
                }
                Step::Piece(piece, start) => {
                    if start != Start::Middle {
                        let was_given_up = given_up.insert(piece.source, false).unwrap_or(false);
                        prop_assert_eq!(start == Start::Resumed, was_given_up);
                    }
                    let text = bytes_of(&piece);
                    if !text.is_empty() {
                        open = (!text.ends_with('\n')).then_some(piece.source);
                    }
                }
            }
        }
    }

    /// Time alone releases waiting pieces: after a pause no piece waits any more.
    #[test]
    fn nothing_is_held_for_longer_than_a_pause(inputs in vec(input(), 0..40)) {
        let mut hold = LineHold::default();
        let mut now = Instant::now();
        let mut steps = Vec::new();
        for input in &inputs {
            if let Input::Piece(rank, stream, text) = input {
                let source = Source::Rank(Rank(*rank), *stream);
                hold.push(Piece { source, bytes: Bytes::copy_from_slice(text.as_bytes()) }, now, &mut steps);
            }
        }
        for _ in 0..=2 * inputs.len() {
            let Some(deadline) = hold.deadline() else { break };
            now = now.max(deadline);
            hold.tick(now, &mut steps);
        }
        prop_assert_eq!(hold.deadline(), None);
    }
}
