//! See [`lattice_session::fuzzing::session_frame`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| lattice_session::fuzzing::session_frame(data));
