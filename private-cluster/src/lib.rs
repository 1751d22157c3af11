//! Clusters of one user, which exist while one command runs: on nodes of another resource manager or on named hosts ([`via`]), and on this
//! machine ([`dev_cluster`]).
//!
//! # Design
//! Both are built on [`ground`]: a directory, certificates, an API server that is a child of this process, and one allocation of all nodes. They
//! differ in the location of the agents and the programs that start them.

pub mod dev_cluster;
pub mod ground;
pub mod via;

pub use self::ground::PrivateClusterError;
