//! The engine alone: its executions per second are the upper limit for a target.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|_data: &[u8]| {});
