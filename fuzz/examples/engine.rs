//! The engine alone: its executions per second are what a target could reach at best.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|_data: &[u8]| {});
