//! Real programs on a cluster of several nodes, through the real `lattice` and the real daemons.
//!
//! As root every node is a network namespace with its own address and host name, and ranks of different nodes can meet in no
//! other way than through the network; else the nodes share the loopback interface. Promises about one machine are kept by
//! the tests in `e2e`; here are those that take several.

mod agents_come_and_go;
mod allocations;
mod api_server_away;
mod audit;
mod batch;
mod broadcast;
mod certificates;
mod cleanup;
mod client_libraries;
mod containers;
mod dynamic;
mod endings;
mod exec;
mod exhaustion;
mod fabric;
mod fabric_options;
mod failure_policies;
mod failures;
mod fan_outs;
mod fault_matrix;
mod following;
mod foreign;
mod gathering;
mod hostile_users;
mod identity;
mod input_by_nodes;
mod insight;
mod job_memory;
mod keys;
mod lifetimes;
mod logs;
mod lossy_links;
mod malformed;
mod memory_floods;
mod mpi_programs;
mod names;
mod newcomers;
mod node_addresses;
mod node_memory;
mod other_launchers;
mod other_managers;
mod other_users;
mod outliving;
mod own_files;
mod pam;
mod placement;
mod pty;
mod random_users;
mod relays;
mod restartable;
mod restarts;
mod root_paths;
mod sets;
mod shell_limits;
mod soak;
mod spawned;
mod srun_layouts;
mod streams;
mod unchanged_mpirun;
mod unprivileged;
mod usable_cpus;
mod users_on_nodes;
