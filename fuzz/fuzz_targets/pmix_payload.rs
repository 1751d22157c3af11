//! See [`pmix_core::fuzzing::payload`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pmix_core::fuzzing::payload(data));
