//! `lattice` and an API server that a test speaks for.

mod answers;
mod child;
mod fake;
mod launches;
mod reattach;
