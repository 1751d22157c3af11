//! See [`lattice_api_server::fuzzing::node_reports`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| lattice_api_server::fuzzing::node_reports(data));
