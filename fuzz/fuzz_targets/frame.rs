//! See [`pmi_core::fuzzing::frame`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pmi_core::fuzzing::frame(data));
