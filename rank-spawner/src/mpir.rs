//! MPIR, the interface by which debuggers find the ranks of a launcher. A debugger looks up variables and a function of fixed names.
//!
//! ```text
//! debugger   sets MPIR_being_debugged ──> stops at MPIR_Breakpoint ──> reads MPIR_proctable, attaches to ranks ──> continues
//! launcher   starts the ranks stopped ──> publishes them ─────^                                                      └──> continues them
//!            ends the launch early ──> sets the reason ──> MPIR_Breakpoint
//! ```
//!
//! Names, types and their order are from "The MPIR Process Acquisition Interface", version 1.0 (MPI Forum, 2010). A program that defines
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

/// Rank in the table for debuggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired<'a> {
    /// Name of the rank's node.
    pub host: &'a str,
    /// Program of the rank.
    pub program: &'a Path,
    /// Process number on the node.
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
/// `MPIR_DEBUG_ABORTING`: the launch is ending.
const ABORTING: c_int = 2;

// SAFETY (of all `no_mangle` below): the names are reserved for this interface; no other part of the program defines them.

/// Nonzero while a debugger is attached to this process; debuggers write it.
#[unsafe(no_mangle)]
static MPIR_being_debugged: AtomicI32 = AtomicI32::new(0);

/// Reason for the call of [`MPIR_Breakpoint`].
#[unsafe(no_mangle)]
static MPIR_debug_state: AtomicI32 = AtomicI32::new(0);

#[unsafe(no_mangle)]
static MPIR_proctable: AtomicPtr<ProcessDescription> = AtomicPtr::new(ptr::null_mut());

#[unsafe(no_mangle)]
static MPIR_proctable_size: AtomicI32 = AtomicI32::new(0);

/// Reason why the launch is ending; null before that.
#[unsafe(no_mangle)]
static MPIR_debug_abort_string: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Its presence marks this process as a launcher that is not a rank.
#[unsafe(no_mangle)]
static MPIR_i_am_starter: AtomicI32 = AtomicI32::new(1);

/// Its presence allows a debugger to attach to a part of the ranks: this process continues the rest.
#[unsafe(no_mangle)]
static MPIR_partial_attach_ok: AtomicI32 = AtomicI32::new(1);

/// Its presence marks ranks as stopped before `main`.
#[unsafe(no_mangle)]
static MPIR_acquired_pre_main: AtomicI32 = AtomicI32::new(1);

/// Function at which debuggers stop this process.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn MPIR_Breakpoint() {
    black_box(MPIR_debug_state.load(Ordering::SeqCst));
}

/// Returns true if a debugger with MPIR support is attached to this process. It needs the ranks stopped before their first instruction.
pub fn is_debugged() -> bool {
    MPIR_being_debugged.load(Ordering::SeqCst) != 0
}

/// Returns true if any debugger is attached to this process.
pub fn is_traced() -> bool {
    // proc_pid_status(5)
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    is_debugged() || tracer.is_some_and(|pid| pid.trim() != "0")
}

/// Publishes the ranks, in their order, to debuggers. Call it once, when all ranks exist. Returns when the debugger continues this process;
/// at once without a debugger. The table stays until the process ends, for debuggers that attach later.
pub fn publish<'a>(ranks: impl IntoIterator<Item = Acquired<'a>>) {
    let mut texts: HashMap<&[u8], *const c_char> = HashMap::new();
    let mut text = |bytes| -> *const c_char {
        // Names of files and nodes have no NUL byte.
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
    // The linker drops unreferenced variables.
    black_box([&MPIR_i_am_starter, &MPIR_partial_attach_ok, &MPIR_acquired_pre_main]);
    MPIR_Breakpoint();
}

/// Reports to debuggers that the launch is ending, with the reason. Returns when the debugger continues this process; at once without a
/// debugger. The first reason stays until the process ends.
pub fn publish_abort(reason: &str) {
    if MPIR_debug_state.load(Ordering::SeqCst) == ABORTING {
        return;
    }
    // Text after a NUL byte would be unreadable.
    let text = reason.split('\0').next().unwrap_or_default();
    MPIR_debug_abort_string.store(CString::new(text).unwrap_or_default().into_raw(), Ordering::SeqCst);
    MPIR_debug_state.store(ABORTING, Ordering::SeqCst);
    MPIR_Breakpoint();
}
