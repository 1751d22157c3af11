//! A launch on several nodes, session by session.

mod cluster;
mod control;
mod programs;
