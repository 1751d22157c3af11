//! Credit-based flow control: a receiver grants bytes, a sender spends them.
//!
//! [`Credit`] is the sender's half and [`Window`] the receiver's half. Both are plain values without I/O, clock or lock. The owner
//! of the connection carries grants and data between them. They control standard input from the client to the API server, and
//! ranks' output from the nodes to the API server.
//!
//! ```text
//! Credit (sender)                            Window (receiver)
//!   take, overdraw ─────── data ────────────> receive   held, until release
//!   grant          <────── grants ─────────── grant     free = size - held - outstanding
//! ```

/// Sender's half: the bytes that the sender may send before the receiver grants more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Negative after a piece that was sent whole and cost more than the remaining credit.
    balance: i64,
    /// Bytes sent and not granted again since the connection was made.
    unconfirmed: u64,
}

/// Half of the range, so that the sum of two balances does not overflow.
const BALANCE_MAX: i64 = i64::MAX / 2;

impl Credit {
    /// Credit of a sender that may first send `window` bytes.
    pub fn new(window: u64) -> Self {
        Self { balance: amount(window), unconfirmed: 0 }
    }

    /// Adds `bytes` that the receiver has granted.
    pub fn grant(&mut self, bytes: u64) {
        self.balance = self.balance.saturating_add(amount(bytes)).min(BALANCE_MAX);
        self.unconfirmed = self.unconfirmed.saturating_sub(bytes);
    }

    /// Returns true if the sender may send.
    pub fn is_available(&self) -> bool {
        self.balance > 0
    }

    /// Spends at most `wanted` bytes for data that can be cut anywhere. Returns the number of bytes that may be sent.
    pub fn take(&mut self, wanted: u64) -> u64 {
        let taken = wanted.min(u64::try_from(self.balance).unwrap_or(0));
        self.overdraw(taken);
        taken
    }

    /// Spends `bytes` for a piece that is sent whole. Allowed while [`Credit::is_available`]. The balance can fall below zero by
    /// one piece, so that a window smaller than a piece causes no deadlock.
    pub fn overdraw(&mut self, bytes: u64) {
        self.balance = self.balance.saturating_sub(amount(bytes)).max(-BALANCE_MAX);
        self.unconfirmed = self.unconfirmed.saturating_add(bytes);
    }

    /// Cancels the overdraft. A new receiver has no record of it, and grants a window as if there were none.
    pub fn forgive(&mut self) {
        self.balance = self.balance.max(0);
    }

    /// Removes the limit permanently: the receiver is gone, and no data can reach it.
    pub fn lift(&mut self) {
        self.balance = BALANCE_MAX;
    }

    /// Drops credit and history together with their connection. Returns the number of bytes that may not have arrived.
    pub fn reset(&mut self) -> u64 {
        std::mem::take(self).unconfirmed
    }
}

fn amount(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(BALANCE_MAX).min(BALANCE_MAX)
}

/// Receiver's half for one sender: the sender's credit, the bytes that are held here, and when a grant is due.
///
/// `size = outstanding + held + free`. `outstanding` is granted and not received. `held` is received and not released. `free` is
/// granted again once it is at least a quarter of the size, so that grants do not outnumber data. `outstanding` follows the
/// sender's balance below zero: overdrawn bytes are granted too. Otherwise a window smaller than a piece would never open again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    size: u64,
    outstanding: i64,
    held: u64,
}

/// A sender sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent {sent} bytes, and was allowed {window}")]
pub struct Overrun {
    /// Bytes received and not released.
    pub sent: u64,
    /// Size of the window.
    pub window: u64,
}

impl Window {
    /// Window of a sender that may first send `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { size, outstanding: amount(size), held: 0 }
    }

    /// Accepts `bytes`, which are held until [`Window::release`]. `piece_max` is the maximum cost of one piece: a sender may
    /// overdraw its credit by this amount.
    ///
    /// # Errors
    /// Fails if more than twice the window is held. One window covers the grants. The other one covers grants that were lost with
    /// a connection and repeated by [`Window::renew`]. Each has room for one more piece. The bytes are held in any case.
    pub fn receive(&mut self, bytes: u64, piece_max: u64) -> Result<(), Overrun> {
        self.pass(bytes);
        self.held = self.held.saturating_add(bytes);
        let most = self.size.saturating_add(piece_max).saturating_mul(2);
        if self.held > most { Err(Overrun { sent: self.held, window: self.size }) } else { Ok(()) }
    }

    /// Accepts `bytes` that are processed at once and never held.
    pub fn pass(&mut self, bytes: u64) {
        self.outstanding = self.outstanding.saturating_sub(amount(bytes)).max(-BALANCE_MAX);
    }

    /// Releases `bytes` that were held.
    pub fn release(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Releases all held bytes.
    pub fn release_all(&mut self) {
        self.held = 0;
    }

    /// Returns the bytes to grant to the sender now; `None` while less than a quarter of the window is free.
    pub fn grant(&mut self) -> Option<u64> {
        let free =
            amount(self.size).saturating_sub(amount(self.held)).saturating_sub(self.outstanding).min(BALANCE_MAX);
        let is_due = free >= amount(self.size / 4).max(1);
        is_due.then(|| {
            self.outstanding = self.outstanding.saturating_add(free);
            free.unsigned_abs()
        })
    }

    /// Assumes that all outstanding grants were lost with a connection. Returns the grant for the new connection. Overdrafts are
    /// known from data that arrived, and are not lost.
    pub fn renew(&mut self) -> Option<u64> {
        self.outstanding = self.outstanding.min(0);
        self.grant()
    }

    /// Returns true if more than half of the window is held: this side slows the sender down.
    pub fn is_congested(&self) -> bool {
        self.held > self.size / 2
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn data_that_can_be_cut_never_exceeds_the_credit() {
        let mut credit = Credit::default();
        assert_eq!((credit.is_available(), credit.take(5)), (false, 0));
        credit.grant(4);
        assert_eq!((credit.take(3), credit.take(3), credit.take(3)), (3, 1, 0));
        credit.grant(2);
        assert_eq!(credit.reset(), 2, "of four bytes two were granted again");
        assert_eq!((credit.is_available(), credit.reset()), (false, 0));
    }

    #[test]
    fn a_whole_piece_may_overdraw_a_small_window_once() {
        let mut credit = Credit::new(1);
        credit.overdraw(100);
        assert!(!credit.is_available());
        credit.grant(99);
        assert!(!credit.is_available());
        credit.grant(1);
        assert!(credit.is_available());
    }

    #[test]
    fn lifted_credit_and_huge_grants_do_not_overflow() {
        let mut credit = Credit::new(u64::MAX);
        credit.grant(u64::MAX);
        credit.overdraw(u64::MAX);
        credit.overdraw(u64::MAX);
        credit.lift();
        assert!(credit.is_available());
        assert_eq!(credit.take(u64::from(u32::MAX)), u64::from(u32::MAX));
        let mut window = Window::new(u64::MAX);
        assert_eq!(window.receive(u64::MAX, u64::MAX), Ok(()));
        assert!(window.is_congested() && window.grant().is_none());
        window.release_all();
        assert!(window.grant().is_some());
    }

    #[test]
    fn what_a_piece_overdrew_is_granted_again() {
        let (mut credit, mut window) = (Credit::new(10), Window::new(10));
        for bytes in [9, 25] {
            credit.overdraw(bytes);
            window.receive(bytes, 25).unwrap();
        }
        window.release_all();
        credit.grant(window.grant().unwrap());
        assert_eq!(credit.take(100), 10, "the window is open again as at first");
    }

    #[test]
    fn a_grant_is_due_when_a_quarter_of_the_window_is_free() {
        let mut window = Window::new(100);
        window.receive(60, 0).unwrap();
        assert!(window.is_congested());
        window.release(24);
        assert_eq!(window.grant(), None);
        window.release(1);
        assert_eq!((window.grant(), window.grant()), (Some(25), None));
        assert!(!window.is_congested());
    }

    #[test]
    fn more_than_twice_the_window_is_an_overrun() {
        let mut window = Window::new(100);
        assert_eq!(window.receive(200, 5), Ok(()));
        assert_eq!(window.receive(11, 5), Err(Overrun { sent: 211, window: 100 }));
    }

    #[test]
    fn grants_lost_with_a_connection_are_made_good() {
        let mut window = Window::new(100);
        window.receive(50, 0).unwrap();
        assert_eq!(window.renew(), Some(50));
        window.release(50);
        assert_eq!(window.grant(), Some(50));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(u64),
        Release(u64),
        Deliver,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(1_u64..300).prop_map(Step::Send), (1_u64..300).prop_map(Step::Release), Just(Step::Deliver)]
    }

    proptest! {
        /// A sender that respects its credit never overruns the window, and always gets credit again.
        #[test]
        fn an_honest_sender_neither_overruns_nor_starves(size in 1_u64..200, steps in proptest::collection::vec(step(), 0..200)) {
            const PIECE_MAX: u64 = 300;
            let (mut credit, mut window) = (Credit::new(size), Window::new(size));
            let (mut held, mut granted) = (0, Vec::new());
            for step in steps {
                match step {
                    Step::Send(bytes) if credit.is_available() => {
                        credit.overdraw(bytes);
                        prop_assert_eq!(window.receive(bytes, PIECE_MAX), Ok(()));
                        held += bytes;
                    }
                    Step::Send(_) => {}
                    Step::Release(bytes) => {
                        let bytes = bytes.min(held);
                        window.release(bytes);
                        held -= bytes;
                    }
                    Step::Deliver => granted.drain(..).for_each(|bytes| credit.grant(bytes)),
                }
                granted.extend(window.grant());
            }
            window.release_all();
            granted.extend(window.grant());
            granted.into_iter().for_each(|bytes| credit.grant(bytes));
            prop_assert!(credit.is_available());
        }
    }
}
