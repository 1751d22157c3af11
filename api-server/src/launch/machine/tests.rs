//! The machine under virtual time: tables for its deadlines, and properties over hundreds of random orders of events.

mod deadlines;
mod properties;
mod simulation;
mod stories;
