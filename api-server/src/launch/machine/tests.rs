//! Tests of the machine under virtual time: tables for its deadlines, and properties over hundreds of random orders of events.

mod deadlines;
mod properties;
mod queries;
mod restarts;
mod simulation;
mod starts;
mod stories;
