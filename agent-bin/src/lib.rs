//! The node agent: admits launches, has their sessions started, relays requests, reports.
#![forbid(unsafe_code)]

pub mod daemon;
