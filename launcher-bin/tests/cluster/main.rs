//! `lattice` with an API server that a test controls.

mod answers;
mod child;
mod fake;
mod launches;
mod reattach;
