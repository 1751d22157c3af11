//! See [`job_memory::fuzzing::memory`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| job_memory::fuzzing::memory(data));
