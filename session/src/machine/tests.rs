//! The whole machine under virtual time: tables of event sequences, and properties over hundreds of random
//! sequences.

mod orders;
mod tables;
mod world;

pub(super) use crate::sample::{spec, spec_on};
