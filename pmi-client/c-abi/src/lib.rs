//! Boundary between callers in C and `pmi-client`, shared by `libpmi.so.0` and `libpmi2.so.0`.
//!
//! A function of the C libraries has one or two lines. Its parameters have the types of [`arguments`], its body runs inside
//! [`boundary::call`], and its client comes from [`process::with`]. Therefore one file dereferences pointers, one function catches
//! panics, and one file has the rules for repeated calls, threads and forks.
//!
//! ```text
//! C caller ─> extern "C" fn(Text, Out<c_int>, ..) ─> boundary::call ─> process::with ─> pmi_client::Client
//!                                                          └─ Code <─ Failure ┘
//! ```

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod arguments;
pub mod boundary;
pub mod code;
pub mod handed_out;
pub mod handler;
pub mod lock;
pub mod process;
pub mod spawn;
#[cfg(not(feature = "std"))]
mod without_std;
