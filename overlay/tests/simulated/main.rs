//! Members of sets in one thread and virtual time.

mod calls;
mod ranks;
mod routes;
mod world;
