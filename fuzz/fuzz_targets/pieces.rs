//! See [`pmi_transport::fuzzing::pieces`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pmi_transport::fuzzing::pieces(data));
