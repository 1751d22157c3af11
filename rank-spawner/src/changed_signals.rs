//! Signals that do not have their default action in this process. A child resets only these before it executes its program. A reset of all 64
//! signals in each child would be most of its system calls.

#![expect(unsafe_code, reason = "reads actions, also of signals that the C library keeps for itself")]

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

/// Number of signals.
const SIGNALS: c_int = 64;
/// Length of the kernel's mask of signals, in bytes.
const MASK_LEN: usize = SIGNALS as usize / 8;

/// Set of signals as a bit mask; bit 0 is signal 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalNumbers(u64);

impl SignalNumbers {
    /// Reads the signals that do not have their default action in this process.
    fn with_other_actions() -> Self {
        let others = (1..=SIGNALS).filter(|&signal| has_other_action(signal));
        Self(others.map(|signal| 1 << (signal - 1)).fold(0, |mask, bit| mask | bit))
    }

    /// Resets each of these signals to its default action in the calling process. Makes system calls and nothing else, so a child that shares
    /// its parent's memory may call it.
    pub(crate) fn give_default_actions(self) {
        // The kernel's `sigaction` of four words, all zero: SIG_DFL, no flags, no restorer, an empty mask. The C library's function rejects
        // signals 32 and 33, which may be ignored all the same.
        let default = [0 as c_ulong; 4];
        let mut left = self.0;
        while left != 0 {
            let signal = left.trailing_zeros() + 1;
            let no_old = ptr::null_mut::<c_void>();
            // SAFETY: `default` is only read, during the call, and no handler is installed.
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), no_old, MASK_LEN) };
            left &= left - 1;
        }
    }
}

fn has_other_action(signal: c_int) -> bool {
    // The kernel's `sigaction` of four words; the first is the handler.
    let mut action = [0 as c_ulong; 4];
    let no_new = ptr::null::<c_void>();
    // SAFETY: with a null new action the call only reads the present action into `action`, which this function owns and which has the kernel's
    // size.
    let read = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, no_new, action.as_mut_ptr(), MASK_LEN) };
    read == 0 && action[0] != libc::SIG_DFL as c_ulong
}

/// All signals that had a non-default action at the time of a look.
#[derive(Debug, Default)]
pub(crate) struct ChangedSignals(AtomicU64);

impl ChangedSignals {
    /// Adds the signals that have a non-default action now. A later change is unknown until the next call.
    pub(crate) fn look(&self) {
        self.0.fetch_or(SignalNumbers::with_other_actions().0, Ordering::Relaxed);
    }

    /// Signals found so far.
    pub(crate) fn seen(&self) -> SignalNumbers {
        SignalNumbers(self.0.load(Ordering::Relaxed))
    }
}
