//! The whole machine under virtual time: tables of orders of events, and properties over hundreds of random ones.

mod orders;
mod tables;
mod world;

pub(super) use crate::sample::{spec, spec_on};
