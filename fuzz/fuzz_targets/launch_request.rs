//! See [`lattice_api_server::fuzzing::launch_request`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| lattice_api_server::fuzzing::launch_request(data));
