//! A launch on several nodes, session by session.

mod binding;
mod cluster;
mod control;
mod programs;
