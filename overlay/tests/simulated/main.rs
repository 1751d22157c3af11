//! Members of sets in one thread and virtual time.

mod calls;
mod hostile;
mod ranks;
mod routes;
mod world;
