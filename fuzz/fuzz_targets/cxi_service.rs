//! See [`cxi_fabric::fuzzing::cxi_service`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cxi_fabric::fuzzing::cxi_service(data));
