//! MPIR, the interface by which debuggers find the ranks of a launcher: variables and a function of the names that they look up in it.
//!
//! ```text
//! debugger   sets MPIR_being_debugged ──> stops at MPIR_Breakpoint ──> reads MPIR_proctable, attaches to ranks ──> continues
//! launcher   starts the ranks stopped ──> publishes them ─────^                                                      └──> lets them go
//!            ends the launch early ──> says why ──> MPIR_Breakpoint
//! ```
//!
//! Names, types and their order are those of "The MPIR Process Acquisition Interface", version 1.0 (MPI Forum, 2010). A program that has
//! them exports them as dynamic symbols, so that they survive `strip`.

#![expect(unsafe_code, reason = "symbols under the names that debuggers look up")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// A rank as debuggers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired<'a> {
    /// Name of its node.
    pub host: &'a str,
    /// Program that it runs.
    pub program: &'a Path,
    /// Number of its process on the node.
    pub pid: u32,
}

/// `MPIR_PROCDESC`
#[repr(C)]
struct ProcessDescription {
    host_name: *const c_char,
    executable_name: *const c_char,
    pid: c_int,
}

/// `MPIR_DEBUG_SPAWNED`: the ranks exist.
const SPAWNED: c_int = 1;
/// `MPIR_DEBUG_ABORTING`: the launch is being ended.
const ABORTING: c_int = 2;

// SAFETY (of all `no_mangle` below): the names are reserved for this interface; no other part of the program defines them.

/// Not 0 while a debugger holds this process; debuggers write it.
#[unsafe(no_mangle)]
static MPIR_being_debugged: AtomicI32 = AtomicI32::new(0);

/// Reason of the call of [`MPIR_Breakpoint`].
#[unsafe(no_mangle)]
static MPIR_debug_state: AtomicI32 = AtomicI32::new(0);

#[unsafe(no_mangle)]
static MPIR_proctable: AtomicPtr<ProcessDescription> = AtomicPtr::new(ptr::null_mut());

#[unsafe(no_mangle)]
static MPIR_proctable_size: AtomicI32 = AtomicI32::new(0);

/// Reason why the launch is being ended; null before that.
#[unsafe(no_mangle)]
static MPIR_debug_abort_string: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Its presence says that this process starts ranks and is none.
#[unsafe(no_mangle)]
static MPIR_i_am_starter: AtomicI32 = AtomicI32::new(1);

/// Its presence says that a debugger need not attach to all ranks: this process lets the others go.
#[unsafe(no_mangle)]
static MPIR_partial_attach_ok: AtomicI32 = AtomicI32::new(1);

/// Its presence says that ranks are stopped before `main`.
#[unsafe(no_mangle)]
static MPIR_acquired_pre_main: AtomicI32 = AtomicI32::new(1);

/// The function at which debuggers stop this process.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn MPIR_Breakpoint() {
    black_box(MPIR_debug_state.load(Ordering::SeqCst));
}

/// Returns true if a debugger that knows the interface holds this process, and wants the ranks stopped before their first instruction.
pub fn is_debugged() -> bool {
    MPIR_being_debugged.load(Ordering::SeqCst) != 0
}

/// Returns true if some debugger holds this process.
pub fn is_traced() -> bool {
    // proc_pid_status(5)
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    is_debugged() || tracer.is_some_and(|pid| pid.trim() != "0")
}

/// Tells debuggers of the ranks, in their order, now that all of them exist; returns when the debugger continues, at once if there is
/// none. The table stays to the end of the process, for debuggers that come later. Called once.
pub fn publish<'a>(ranks: impl IntoIterator<Item = Acquired<'a>>) {
    let mut texts: HashMap<&[u8], *const c_char> = HashMap::new();
    let mut text = |bytes| -> *const c_char {
        // Names of files and nodes have no zero byte.
        *texts.entry(bytes).or_insert_with(|| CString::new(bytes).unwrap_or_default().into_raw())
    };
    let descriptions = ranks.into_iter().map(|rank| ProcessDescription {
        host_name: text(rank.host.as_bytes()),
        executable_name: text(rank.program.as_os_str().as_bytes()),
        pid: c_int::try_from(rank.pid).unwrap_or_default(),
    });
    let table: &'static mut [ProcessDescription] = descriptions.collect::<Vec<_>>().leak();
    MPIR_proctable_size.store(c_int::try_from(table.len()).unwrap_or(c_int::MAX), Ordering::SeqCst);
    MPIR_proctable.store(table.as_mut_ptr(), Ordering::SeqCst);
    MPIR_debug_state.store(SPAWNED, Ordering::SeqCst);
    // What nobody refers to is not linked.
    black_box([&MPIR_i_am_starter, &MPIR_partial_attach_ok, &MPIR_acquired_pre_main]);
    MPIR_Breakpoint();
}

/// Tells debuggers that the launch is being ended, and why; returns when the debugger continues, at once if there is none. The first reason
/// stays to the end of the process.
pub fn publish_abort(reason: &str) {
    if MPIR_debug_state.load(Ordering::SeqCst) == ABORTING {
        return;
    }
    // What stands behind a zero byte would not be read.
    let text = reason.split('\0').next().unwrap_or_default();
    MPIR_debug_abort_string.store(CString::new(text).unwrap_or_default().into_raw(), Ordering::SeqCst);
    MPIR_debug_state.store(ABORTING, Ordering::SeqCst);
    MPIR_Breakpoint();
}
