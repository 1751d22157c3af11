//! The variables that a rank starts with, and the variables of an outer launcher that must not reach it.

use std::ffi::OsString;

use crate::ids::{LocalRank, Rank};

/// Prefixes of variables by which launchers and their clients find each other. Variables from an outer launcher are wrong for a rank (all
/// measured). `PMI_SIZE` together with `PMIX_NAMESPACE` aborts `MPI_Init` in MPICH 5. `PMI_VERSION` makes MPICH 4.0 skip the process
/// mapping. `PMI_TOTALVIEW` makes it wait for a debugger. `PMI_ID` makes Slurm's client send another field.
pub const SCRUBBED_PREFIXES: &[&str] =
    &["PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "OMPI_", "PALS_", "LATTICE_"];

/// Single variables with the same effect.
pub const SCRUBBED_NAMES: &[&str] = &["MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

/// Prefixes of variables that match a scrubbed prefix, but are settings of the user and not of a launcher.
const KEPT_PREFIXES: &[&str] = &["OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "LATTICE_API_", "LATTICE_LOG"];

/// Single variables that match a scrubbed prefix, but are settings of the user for a launcher that a rank's script starts.
const KEPT_NAMES: &[&str] = &[
    "LATTICE_SETS",
    "HYDRA_LAUNCHER",
    "HYDRA_LAUNCHER_EXEC",
    "HYDRA_HOST_FILE",
    "OMPI_MCA_orte_default_hostfile",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
];

/// Returns true if an inherited variable must not reach a rank.
///
/// The user's own settings (`OMPI_MCA_*`) stay, except the variables that Open MPI's launcher sets for its processes.
pub fn is_scrubbed(name: &str) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let users_own = begins(KEPT_PREFIXES) && !name.starts_with("OMPI_MCA_ess") && !name.starts_with("OMPI_MCA_orte");
    let users_own = users_own || KEPT_NAMES.contains(&name);
    SCRUBBED_NAMES.contains(&name) || (begins(SCRUBBED_PREFIXES) && !users_own)
}

/// Returns the variables of this process that a rank may inherit: all except the ones that [`is_scrubbed`] matches.
pub fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| !name.to_str().is_some_and(is_scrubbed))
}

/// Connection of a rank to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance<'a> {
    /// A connected socket that the rank inherits under this number.
    Descriptor(i32),
    /// A TCP port.
    Port {
        /// `host:port`.
        address: &'a str,
        /// The rank's key, where the server [requires keys](crate::server::Server::require_keys); else its number.
        id: u32,
    },
}

/// The PMI variables of one rank.
#[derive(Clone, Copy, Debug)]
pub struct RankEnvironment<'a> {
    /// The rank.
    pub rank: Rank,
    /// The size of its job.
    pub size: u32,
    /// Its position on its node.
    pub local_rank: LocalRank,
    /// Number of ranks of the job on its node.
    pub local_size: u32,
    /// A name or address of its node that other nodes can reach.
    pub host: &'a str,
    /// True if its job was spawned by another one.
    pub spawned: bool,
    /// Connection to its server.
    pub entrance: Entrance<'a>,
}

impl<'a> RankEnvironment<'a> {
    /// Creates the environment of a rank in a job on one node that no other job spawned.
    pub fn on_one_node(rank: Rank, size: u32, entrance: Entrance<'a>) -> Self {
        let (local_rank, local_size) = (LocalRank(rank.0), size);
        Self { rank, size, local_rank, local_size, host: "127.0.0.1", spawned: false, entrance }
    }

    /// The variables, in no particular order.
    ///
    /// In descriptor mode, clients take rank and size only from these variables. In port mode these two variables must be absent: clients
    /// then take both from the server.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            // Every client treats 0 like an absent variable. The design document names the variable.
            ("PMI_SPAWNED", u32::from(self.spawned).to_string()),
            ("PMI_HOSTNAME", self.host.to_owned()),
            ("MPI_LOCALRANKID", self.local_rank.to_string()),
            ("MPI_LOCALNRANKS", self.local_size.to_string()),
        ];
        match self.entrance {
            Entrance::Descriptor(descriptor) => variables.extend([
                ("PMI_FD", descriptor.to_string()),
                ("PMI_RANK", self.rank.to_string()),
                ("PMI_SIZE", self.size.to_string()),
            ]),
            Entrance::Port { address, id } => {
                variables.extend([("PMI_PORT", address.to_owned()), ("PMI_ID", id.to_string())]);
            }
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_22_an_outer_launchers_variables_do_not_reach_a_rank() {
        for name in
            ["PMI_VERSION", "PMI_ID", "PMI_TOTALVIEW", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "PRTE_LAUNCHED"]
        {
            assert!(is_scrubbed(name), "{name} would reach a rank");
        }
        for name in [
            "PATH",
            "OMPI_MCA_btl",
            "HYDRA_HOST_FILE",
            "OMPI_ALLOW_RUN_AS_ROOT",
            "MPIR_CVAR_PMI_VERSION",
            "FI_PROVIDER",
            "SLINGSHOT_VNIS",
            "PMIO",
        ] {
            assert!(!is_scrubbed(name), "{name} is the user's own");
        }
    }

    #[test]
    fn trap_02_rank_and_size_are_in_the_environment_in_descriptor_mode_and_only_there() {
        let mut rank = RankEnvironment {
            rank: Rank(3),
            size: 4,
            local_rank: LocalRank(1),
            local_size: 2,
            host: "n1",
            spawned: false,
            entrance: Entrance::Descriptor(30),
        };
        let names = |rank: &RankEnvironment<'_>| rank.variables().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(names(&rank).contains(&"PMI_SIZE") && !names(&rank).contains(&"PMI_ID"));
        assert!(rank.variables().contains(&("PMI_FD", "30".to_owned())), "clients know no other way");
        rank.entrance = Entrance::Port { address: "127.0.0.1:4000", id: 3 };
        assert!(names(&rank).contains(&"PMI_ID") && !names(&rank).contains(&"PMI_SIZE"));
    }
}
