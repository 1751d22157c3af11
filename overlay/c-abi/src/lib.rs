//! The functions of `include/lattice_overlay.h`, which documents them: [`lattice_overlay::participant`] for programs in C.
//!
//! Callers must satisfy the conditions of the header: a pointer is NULL or valid for its type during the whole call, and a length is
//! the number of valid bytes. Every `unsafe` block depends on that.
#![expect(unsafe_code, reason = "arguments of callers in C, and exported names")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use lattice_overlay::address::{SetId, Uid};
use lattice_overlay::error::{CallError, Fault};
use lattice_overlay::method::Method;
use lattice_overlay::participant::{Participant, ParticipantError};

const OK: c_int = 0;
const INVALID: c_int = -1;
const NO_ROUTE: c_int = -2;
const TIMEOUT: c_int = -3;
const BUSY: c_int = -4;
const NO_METHOD: c_int = -5;
const NO_PROCESS: c_int = -6;
const REFUSED: c_int = -7;
const HANDLER: c_int = -8;
const SESSION: c_int = -9;
const LOST: c_int = -10;

/// `lattice_overlay`: a participant.
pub struct Overlay(Participant);

/// `lattice_reply`: the answer of a handler.
#[derive(Debug, Default)]
pub struct Reply(Vec<u8>);

/// `lattice_handler`.
pub type Handler = extern "C" fn(*mut c_void, *const Overlay, u64, *const u8, usize, &mut Reply) -> c_int;

fn code(error: &CallError) -> c_int {
    match error {
        CallError::NoRoute { .. } | CallError::TtlSpent { .. } => NO_ROUTE,
        CallError::Lost { .. } => LOST,
        CallError::Timeout { .. } => TIMEOUT,
        CallError::Busy { .. } => BUSY,
        CallError::NoSuchMethod => NO_METHOD,
        CallError::NoSuchProcess => NO_PROCESS,
        CallError::Handler(_) => HANDLER,
        _ => REFUSED,
    }
}

fn bytes<'c>(first: *const u8, length: usize) -> Option<&'c [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: it is not NULL, and the caller guarantees this many valid bytes.
    (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, length) })
}

/// Converts milliseconds; a negative number means no limit.
fn limit(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn hand_out(made: Result<Participant, ParticipantError>, out: Option<&mut *mut Overlay>) -> c_int {
    match (made, out) {
        (Ok(participant), Some(out)) => {
            *out = Box::into_raw(Box::new(Overlay(participant)));
            OK
        }
        (_, None) => INVALID,
        (Err(_), Some(_)) => SESSION,
    }
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_overlay_open(out: Option<&mut *mut Overlay>) -> c_int {
    hand_out(Participant::of_launch(), out)
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_overlay_join(set: u32, out: Option<&mut *mut Overlay>) -> c_int {
    hand_out(Participant::guest_of(SetId::from_bits(set)), out)
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_overlay_close(overlay: Option<Box<Overlay>>) {
    drop(overlay);
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_self(overlay: Option<&Overlay>) -> u64 {
    overlay.map_or(0, |overlay| overlay.0.me().bits())
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_fd(overlay: Option<&Overlay>) -> c_int {
    overlay.map_or(-1, |overlay| overlay.0.fd().as_raw_fd())
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_progress(overlay: Option<&Overlay>, ms: c_int) -> c_int {
    let Some(overlay) = overlay else { return INVALID };
    overlay.0.progress(limit(ms)).map_or(SESSION, |()| OK)
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_call(
    overlay: Option<&Overlay>,
    to: u64,
    method: u32,
    body: *const u8,
    length: usize,
    ms: c_int,
    out: Option<&mut *mut u8>,
    out_length: Option<&mut usize>,
) -> c_int {
    let (Some(overlay), Some(body), Some(out), Some(out_length)) = (overlay, bytes(body, length), out, out_length)
    else {
        return INVALID;
    };
    // The maximum time of a call.
    let timeout = limit(ms).unwrap_or(Duration::from_millis(u32::MAX.into()));
    match overlay.0.call(Uid::from_bits(to), Method(method), body, timeout) {
        Ok(answer) => {
            let answer: Box<[u8]> = answer.to_vec().into();
            *out_length = answer.len();
            *out = Box::into_raw(answer).cast();
            OK
        }
        Err(error) => code(&error),
    }
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_serve(
    overlay: Option<&Overlay>,
    method: u32,
    handler: Option<Handler>,
    arg: *mut c_void,
) -> c_int {
    let (Some(overlay), Some(handler)) = (overlay, handler) else { return INVALID };
    if !Method(method).is_of_programs() {
        return INVALID;
    }
    // The object does not move until it is closed, and handlers do not run after that.
    let itself = std::ptr::from_ref(overlay);
    overlay.0.serve(Method(method), move |_, from, body| {
        let mut reply = Reply::default();
        match handler(arg, itself, from.bits(), body.as_ptr(), body.len(), &mut reply) {
            0 => Ok(reply.0.into()),
            other => Err(Fault(format!("it returned {other}"))),
        }
    });
    OK
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_reply_set(reply: Option<&mut Reply>, body: *const u8, length: usize) {
    if let (Some(reply), Some(body)) = (reply, bytes(body, length)) {
        reply.0 = body.to_vec();
    }
}

/// See the header.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_free(memory: *mut u8, length: usize) {
    if !memory.is_null() {
        // SAFETY: `lattice_call` returned it with this length, and the caller no longer uses it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, length)) });
    }
}

/// See the header.
///
/// # Safety
/// The pointer must satisfy the header's conditions.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_uid_parse(text: *const c_char, out: Option<&mut u64>) -> c_int {
    // SAFETY: it is not NULL, and the caller's text ends with a NUL.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    let uid = text.and_then(|text| text.to_str().ok()?.parse::<Uid>().ok());
    let (Some(uid), Some(out)) = (uid, out) else { return INVALID };
    *out = uid.bits();
    OK
}

/// See the header.
///
/// # Safety
/// The pointer must satisfy the header's conditions.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_uid_format(uid: u64, out: *mut u8, length: usize) {
    if out.is_null() || length == 0 {
        return;
    }
    // SAFETY: it is not NULL, and the caller guarantees space for this many bytes.
    let out = unsafe { std::slice::from_raw_parts_mut(out, length) };
    let text = Uid::from_bits(uid).to_string();
    let kept = text.len().min(length - 1);
    out[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    out[kept] = 0;
}
