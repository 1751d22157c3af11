//! Members of sets in one thread and virtual time.

mod calls;
mod routes;
mod world;
