//! See [`rank_spawner::fuzzing::text`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rank_spawner::fuzzing::text(data));
