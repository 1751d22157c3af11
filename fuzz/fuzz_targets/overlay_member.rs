//! See [`lattice_overlay::fuzzing::overlay_member`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| lattice_overlay::fuzzing::overlay_member(data));
