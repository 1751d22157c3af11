//! What the comparison programs in `benches/` have in common: samples with their medians and intervals, and the one line
//! that says on which machine a table was made.
//!
//! A figure of one machine says little on another; a ratio between two programs measured in turns says more.

pub mod machine;
pub mod sample;
