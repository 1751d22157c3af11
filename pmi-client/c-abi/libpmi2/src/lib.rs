//! `libpmi2.so.0`: the functions of `pmi2.h`, for programs and MPI libraries that use PMI-2 through a C library.
//!
//! Each function has the name, the parameters and the codes of `include/pmi2.h`, which documents them.
//!
//! | file | functions |
//! |---|---|
//! | `job.rs` | a process and its job: init, finalize, abort, id, rank, size |
//! | `kvs.rs` | put, fence, get, ring |
//! | `info.rs` | attributes of the node and of the job |
//! | `names.rs`, `spawn.rs` | other jobs |

#![cfg_attr(not(feature = "std"), no_std)]
#![allow(non_snake_case, reason = "the names are those of pmi2.h")]
#![allow(unsafe_code, reason = "exported names; pointers are followed in pmi-c-abi alone")]

extern crate alloc;

pub mod info;
pub mod job;
pub mod kvs;
pub mod names;
pub mod spawn;

use core::ffi::c_int;

use pmi_c_abi::arguments::Out;
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::{boundary, process};
use pmi_client::Client;

/// Runs the body of a function. PMI-2 has one code for all failures of the launcher.
fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    boundary::call(Code::OTHER, body)
}

/// Runs a function that writes one number.
fn number(place: Out<'_, c_int>, of: impl FnOnce(&mut Client) -> Result<c_int, Failure>) -> c_int {
    call(|| process::number(place, of))
}

/// Version of the library, for `lattice pmi library`.
#[used]
#[unsafe(link_section = ".lattice.version")]
static VERSION: [u8; env!("CARGO_PKG_VERSION").len()] = *env!("CARGO_PKG_VERSION").as_bytes().first_chunk().unwrap();
