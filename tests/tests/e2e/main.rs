//! Real programs through the real `lattice launch`. The name of each test is a promise to users.
//!
//! No test asserts a time but where a promise names one, and then with room for a loaded machine.

mod aborts;
mod bad_input;
mod bad_ranks;
mod binding;
mod binding_words;
mod cleanup;
mod client_libraries;
mod debuggers;
mod dynamic;
mod ends;
mod environment;
mod every_mpi;
mod failure_policies;
mod files;
mod hostile_ranks;
mod job_memory;
mod json;
mod load;
mod malformed;
mod meetings;
mod mpi4py;
mod mpi_programs;
mod names;
mod nested;
mod node_facts;
mod openmpi;
mod output;
mod own_files;
mod pmi;
mod pmix;
mod pmix_tools;
mod presets;
mod pty;
mod raw;
mod resources;
mod restartable;
mod scripts;
mod session_floods;
mod sets;
mod signals;
mod stdin;
mod terminal;
mod topology;
mod watch;
