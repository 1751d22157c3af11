//! See [`lattice_overlay::fuzzing::set_file`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| lattice_overlay::fuzzing::set_file(data));
