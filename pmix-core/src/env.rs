//! The variables by which a rank finds its PMIx server, and the variables that Open MPI and MPICH also need.

use std::net::SocketAddr;

use pmi_core::ids::Rank;

use crate::wire::reader::Proc;

/// The name of every server.
pub(crate) const SERVER: Proc<'static> = Proc { namespace: b"lattice", rank: 0 };

/// Returns the text by which clients find the server at an address.
pub fn server_uri(server: SocketAddr) -> String {
    let family = if server.is_ipv4() { "tcp4" } else { "tcp6" };
    format!("{}.{};{family}://{server}", SERVER.namespace.escape_ascii(), SERVER.rank)
}

/// The PMIx variables of one rank.
#[derive(Clone, Copy, Debug)]
pub struct RankEnvironment<'a> {
    /// Its job's namespace.
    pub namespace: &'a str,
    /// The rank.
    pub rank: Rank,
    /// Address of its server.
    pub server: SocketAddr,
    /// The name of its node, as in the node list.
    pub host: &'a str,
}

/// Excludes Open MPI 4.1's components for launch environments that would treat the process as a separate job, whatever else is set. These
/// are `orte` always, and the components of other resource managers inside an allocation of theirs, such as `slurm` with `SLURM_JOBID`
/// and no `SLURM_STEP_ID` (measured with 4.1.4). Names that a version does not have do no harm.
const NOT_A_SINGLETON: (&str, &str) = ("OMPI_MCA_schizo", "^orte,slurm,alps,flux,jsm,moab");

/// Signals Open MPI 4.1 that its launcher has completed the binding; Open MPI's own launcher sets it whether it has bound a rank or not.
/// With `orte_externally_bound` instead, a rank first discovers the whole machine to find its binding (`ess_base_fns.c`).
const BOUND_AT_LAUNCH: &str = "OMPI_MCA_orte_bound_at_launch";

impl RankEnvironment<'_> {
    /// The variables, in no particular order.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let Self { namespace, rank, server, host } = self;
        let uri = server_uri(*server);
        vec![
            // The name that a client reads selects its encoding: these two select v41 for 4.2 and later, and v3 for all earlier versions.
            ("PMIX_SERVER_URI41", uri.clone()),
            ("PMIX_SERVER_URI3", uri),
            ("PMIX_NAMESPACE", (*namespace).to_owned()),
            ("PMIX_RANK", rank.to_string()),
            // All job data then travels over the connection, and none in shared memory with a version-specific layout.
            ("PMIX_GDS_MODULE", "hash".to_owned()),
            ("PMIX_SECURITY_MODE", "native".to_owned()),
            ("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC".to_owned()),
            ("PMIX_HOSTNAME", (*host).to_owned()),
            // Clients only print it.
            ("PMIX_VERSION", "4.2.2".to_owned()),
            (NOT_A_SINGLETON.0, NOT_A_SINGLETON.1.to_owned()),
            (BOUND_AT_LAUNCH, "1".to_owned()),
        ]
    }
}

/// Families of variables in the environment of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// Only PMIx.
    Pmix,
    /// PMIx, PMI-1 and PMI-2.
    PmixAndPmi,
}

/// CPUs of a node, compared with its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// At least one for each rank.
    Enough,
    /// Fewer than ranks.
    Shared,
}

/// Settings that a rank gets unless its user has set them.
///
/// MPICH 5 refuses to select a family of variables when both are present. Where there are fewer CPUs than ranks, Open MPI's busy waiting
/// takes the CPU from the rank that it waits for.
pub fn defaults(families: Families, cpus: Cpus) -> Vec<(&'static str, &'static str)> {
    // The launcher has already bound the rank.
    let mut defaults = vec![("OMPI_MCA_hwloc_base_binding_policy", "none")];
    if cpus == Cpus::Shared {
        defaults.push(("OMPI_MCA_mpi_yield_when_idle", "1"));
    }
    if families == Families::PmixAndPmi {
        defaults.push(("MPIR_CVAR_PMI_VERSION", "1"));
    }
    defaults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_finds_its_server_by_both_names() {
        let server = "127.0.0.1:4000".parse().unwrap();
        let rank = RankEnvironment { namespace: "ns", rank: Rank(3), server, host: "n1" };
        let variables = rank.variables();
        for name in ["PMIX_SERVER_URI41", "PMIX_SERVER_URI3"] {
            assert!(variables.contains(&(name, "lattice.0;tcp4://127.0.0.1:4000".to_owned())));
        }
        // any other name would make a client select an encoding that is not served
        assert_eq!(variables.iter().filter(|(name, _)| name.starts_with("PMIX_SERVER_URI")).count(), 2);
        // mpirun of Open MPI 4.1 treats a process with this variable as a rank of another mpirun, and refuses to run; its programs
        // request `pmix.univ.size`
        assert!(!variables.iter().any(|(name, _)| *name == "OMPI_UNIVERSE_SIZE"));
        assert!(!defaults(Families::Pmix, Cpus::Enough).iter().any(|(name, _)| name.starts_with("MPIR")));
    }
}
