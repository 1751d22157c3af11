//! `libpmi.so.0`: the functions of `pmi.h`, for programs and MPI libraries that use PMI-1 through a C library.
//!
//! Each function has the name, the parameters and the codes of `include/pmi.h`, which documents them. Their order here is that of the
//! header.
//!
//! | file | functions |
//! |---|---|
//! | `job.rs` | a process and its job: init, finalize, abort, rank, size, the ranks of a node |
//! | `kvs.rs` | key-value spaces: names, lengths, put, commit, barrier, get |
//! | `collectives.rs` | collectives and nodes, as in Cray's header (`pmi_ext.h`) |
//! | `groups.rs` | barriers of groups (PMI-1.2) |
//! | `applications.rs` | programs of a job (`pmi_ext.h`) |
//! | `names.rs`, `spawn.rs` | other jobs |
//! | `resources.rs` | resources that outlive their process (`pmi_ext.h`) |
//! | `options.rs` | pairs from command lines |
//! | `node_memory.rs` | memory that the ranks of a node share |
//! | `topology.rs` | the levels of the machine to which a rank belongs |

#![cfg_attr(not(feature = "std"), no_std)]
#![allow(non_snake_case, reason = "the names are those of pmi.h")]
#![allow(unsafe_code, reason = "exported names; pointers are followed in pmi-c-abi alone")]

extern crate alloc;

pub mod applications;
pub mod collectives;
pub mod groups;
pub mod job;
pub mod kvs;
pub mod names;
pub mod node_memory;
pub mod options;
pub mod resources;
pub mod spawn;
pub mod topology;

use core::ffi::c_int;

use pmi_c_abi::arguments::Out;
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::{boundary, process};
use pmi_client::Client;

/// Runs the body of a function. PMI-1 has one code for all failures of the launcher.
fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    boundary::call(Code::FAIL, body)
}

/// Runs a function that writes one number.
fn number(place: Out<'_, c_int>, of: impl FnOnce(&mut Client) -> Result<c_int, Failure>) -> c_int {
    call(|| process::number(place, of))
}

/// Version of the library, for `lattice pmi library`.
#[used]
#[unsafe(link_section = ".lattice.version")]
static VERSION: [u8; env!("CARGO_PKG_VERSION").len()] = *env!("CARGO_PKG_VERSION").as_bytes().first_chunk().unwrap();
