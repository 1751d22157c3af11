use proptest::prelude::*;

use super::*;

/// Writes all messages that can be written.
fn write<T: Copy>(sender: &mut Unconfirmed<T>) -> Vec<(u64, T)> {
    std::iter::from_fn(|| sender.next_to_write().map(|(number, message)| (number, *message))).collect()
}

#[test]
fn messages_are_numbered_from_one_and_kept_until_they_are_confirmed() {
    let mut sender = Unconfirmed::default();
    assert_eq!(["a", "b", "c"].map(|message| sender.push(message)), [1, 2, 3]);
    assert_eq!(sender.next_to_write(), Some((1, &mut "a")));
    assert_eq!(sender.confirm(3).collect::<Vec<_>>(), ["a"], "the others were not written");
    assert_eq!(write(&mut sender), [(2, "b"), (3, "c")]);
    assert_eq!((sender.count(), sender.has_next()), (2, false));
    assert_eq!(sender.confirm(2).count(), 1);
    assert_eq!(sender.confirm(1).count(), 0, "confirmed before");
    assert_eq!((sender.count(), sender.last()), (1, 3));
}

#[test]
fn a_new_connection_goes_on_behind_what_the_receiver_has() {
    let mut sender = Unconfirmed::default();
    for message in 1..=4 {
        sender.push(message);
    }
    assert_eq!(write(&mut sender).len(), 4);
    sender.break_off();
    sender.push(5);
    assert_eq!(sender.next_to_write(), None, "nobody knows yet what the receiver has");
    assert_eq!(sender.resume(2).0, 2);
    assert_eq!(write(&mut sender), [(3, 3), (4, 4), (5, 5)]);
    sender.break_off();
    assert_eq!(sender.resume(0).0, 2, "what was confirmed is not there any more");
    assert_eq!(sender.resume(99).0, 5, "what was never sent cannot have come");
}

#[test]
fn a_receiver_that_knows_nothing_gets_what_was_not_handed_over_and_what_must_not_be_lost() {
    let mut sender = Unconfirmed::default();
    for message in 1..=6 {
        sender.push(message);
    }
    assert_eq!(write(&mut sender).len(), 6);
    assert_eq!(sender.confirm(1).count(), 1);
    sender.break_off();
    assert_eq!(sender.restart(Some(4), |&message| message == 3), (6, vec![2, 4]));
    sender.push_first(0);
    assert_eq!(write(&mut sender), [(7, 0), (8, 3), (9, 5), (10, 6)]);
    sender.break_off();
    sender.push(7);
    assert_eq!(sender.restart(None, |_| false).0, 11, "all that was written counts as handed over");
    assert_eq!(write(&mut sender), [(12, 7)]);
}

#[test]
fn a_number_is_taken_once_and_none_is_left_out() {
    let mut receiver = Received::through(6);
    let arrivals = [6, 8, 7, 7, 0, u64::MAX].map(|number| receiver.take(number));
    use Arrival::{Again, Gap, New};
    assert_eq!(arrivals, [Again, Gap, New, Again, Again, Gap]);
    assert_eq!(receiver.last(), 7);
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    /// The sender writes this many messages.
    Write(usize),
    /// This many messages reach the receiver.
    Deliver(usize),
    /// The receiver's confirmation arrives.
    Confirm,
    /// All messages in transit are lost. The new connection comes at once, or after more messages were pushed.
    Break {
        pushed: usize,
    },
    /// The same, and the receiver has lost its state.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Push),
        4 => (1_usize..5).prop_map(Step::Write),
        4 => (1_usize..5).prop_map(Step::Deliver),
        2 => Just(Step::Confirm),
        2 => (0_usize..3).prop_map(|pushed| Step::Break { pushed }),
        1 => Just(Step::Restart),
    ]
}

/// Both halves, and the messages in transit between them.
#[derive(Default)]
struct Line {
    sender: Unconfirmed<u64>,
    pushed: u64,
    pipe: VecDeque<(u64, u64)>,
    receiver: Received,
    taken: Vec<u64>,
}

impl Line {
    fn push(&mut self) {
        self.pushed += 1;
        self.sender.push(self.pushed);
    }

    fn write(&mut self, count: usize) {
        for _ in 0..count {
            let Some((number, &mut message)) = self.sender.next_to_write() else { return };
            self.pipe.push_back((number, message));
        }
    }

    fn deliver(&mut self, count: usize) {
        for (number, message) in self.pipe.drain(..count.min(self.pipe.len())) {
            match self.receiver.take(number) {
                Arrival::New => self.taken.push(message),
                Arrival::Again => {}
                Arrival::Gap => panic!("{number} after {:?}", self.receiver),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Push => self.push(),
            Step::Write(count) => self.write(count),
            Step::Deliver(count) => self.deliver(count),
            Step::Confirm => drop(self.sender.confirm(self.receiver.last()).count()),
            Step::Break { pushed } => {
                self.pipe.clear();
                self.sender.break_off();
                (0..pushed).for_each(|_| self.push());
                assert_eq!(self.sender.resume(self.receiver.last()).0, self.receiver.last());
            }
            Step::Restart => {
                self.pipe.clear();
                self.sender.break_off();
                let (after, _) = self.sender.restart(None, |_| false);
                self.receiver = Received::through(after);
            }
        }
    }

    fn finish(mut self) -> (u64, Vec<u64>, Unconfirmed<u64>) {
        self.write(usize::MAX);
        self.deliver(usize::MAX);
        self.sender.confirm(self.receiver.last()).for_each(drop);
        (self.pushed, self.taken, self.sender)
    }
}

proptest! {
    #[test]
    fn every_message_arrives_once_and_in_order(steps in proptest::collection::vec(step(), 0..200)) {
        let mut line = Line::default();
        steps.iter().filter(|step| !matches!(step, Step::Restart)).for_each(|step| line.step(step));
        let (pushed, taken, sender) = line.finish();
        prop_assert_eq!(taken, (1..=pushed).collect::<Vec<_>>());
        prop_assert_eq!(sender.count(), 0, "nothing is kept for ever");
    }

    /// Messages in transit may be lost when the receiver loses its state. No message arrives twice or out of order, and messages that
    /// were not written arrive.
    #[test]
    fn nothing_arrives_twice_at_a_receiver_that_forgets(steps in proptest::collection::vec(step(), 0..200)) {
        let mut line = Line::default();
        let mut lost = 0;
        for step in &steps {
            if matches!(step, Step::Restart) {
                lost += line.pipe.len();
            }
            line.step(step);
        }
        let (pushed, taken, sender) = line.finish();
        prop_assert!(taken.is_sorted_by(|one, next| one < next), "{taken:?}");
        prop_assert_eq!(taken.len() + lost, pushed as usize);
        prop_assert_eq!(sender.count(), 0);
    }
}
