//! Variables that stand for flags which a line does not have: those of the MPI standard's `mpiexec` for every line, Hydra's and Open MPI's for lines of theirs.

use std::cell::LazyCell;
use std::ffi::OsString;

use super::super::line::Line;
use super::super::{Refusal, variables};
use super::FLAGS;
use super::dialect::Dialect;

/// Whose lines heed a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Everybody,
    Hydra,
    OpenMpi,
}

/// Condition of a line under which a variable has something to say.
type Open = fn(&Line) -> bool;

/// Each variable with the flag that it stands for. Hydra's are those of its wiki and `mpiexec -help`, Open MPI's those of `ompi_info` and `prte_info`.
const VARIABLES: &[(&str, Of, &str, Open)] = &[
    ("MPIEXEC_TIMEOUT", Of::Everybody, "timeout", |line| !line.has("--timeout")),
    ("MPIEXEC_UNIVERSE_SIZE", Of::Everybody, "usize", |line| !line.has("--universe-size")),
    ("MPIEXEC_PREFIX_DEFAULT", Of::Everybody, "prepend-rank", |line| !line.has("--label")),
    ("HYDRA_HOST_FILE", Of::Hydra, "f", has_no_hosts),
    ("HYDRA_BINDING", Of::Hydra, "bind-to", is_unbound),
    ("OMPI_MCA_orte_default_hostfile", Of::OpenMpi, "hostfile", has_no_hosts),
    ("PRTE_MCA_prte_default_hostfile", Of::OpenMpi, "hostfile", has_no_hosts),
    ("OMPI_MCA_hwloc_base_binding_policy", Of::OpenMpi, "bind-to", is_unbound),
    ("PRTE_MCA_hwloc_default_binding_policy", Of::OpenMpi, "bind-to", is_unbound),
    ("OMPI_MCA_rmaps_base_mapping_policy", Of::OpenMpi, "map-by", is_unmapped),
    ("PRTE_MCA_rmaps_default_mapping_policy", Of::OpenMpi, "map-by", is_unmapped),
    ("OMPI_MCA_rmaps_base_oversubscribe", Of::OpenMpi, "oversubscribe", |line| !line.places.overcommit),
];

fn has_no_hosts(line: &Line) -> bool {
    let named = ["--hostfile", "--host", "--nodelist", "--rankfile"].iter().any(|flag| line.has(flag));
    !named && line.programs().iter().all(|program| program.hosts.is_none())
}

fn is_unbound(line: &Line) -> bool {
    line.places.object.is_none() && line.places.core_list.is_none() && !line.has("--rankfile")
}

fn is_unmapped(line: &Line) -> bool {
    let is_placed = ["--distribution", "--tasks-per-node", "--tasks-per", "--rankfile"];
    let is_mapped = line.places.is_mapped || line.places.core_list.is_some();
    !is_mapped && !is_placed.iter().any(|flag| line.has(flag))
}

/// Beginnings of the names of variables that stand for parameters of Open MPI.
const PARAMETERS: [&str; 2] = ["OMPI_MCA_", "PRTE_MCA_"];

/// The parameter of Open MPI that a variable stands for.
fn parameter_of(variable: &str) -> Option<&str> {
    PARAMETERS.iter().find_map(|prefix| variable.strip_prefix(prefix))
}

/// Name and value of `NAME=VALUE`, if that is a parameter of Open MPI's launcher that stands for a flag.
pub(super) fn parameter(pair: &str) -> Option<(&str, &str)> {
    let (name, value) = pair.split_once('=')?;
    VARIABLES.iter().any(|(variable, ..)| parameter_of(variable) == Some(name)).then_some((name, value))
}

/// Adds the flags that parameters of the line stand for, and then variables; `dialect` tells that of the line, and is asked only if it matters.
pub(super) fn heed(
    line: &mut Line,
    dialect: impl FnOnce() -> Option<Dialect>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Refusal> {
    let dialect = LazyCell::new(dialect);
    let parameters = std::mem::take(&mut line.parameters);
    let of_line = |variable: &str| {
        let name = parameter_of(variable)?;
        parameters.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let of_line = VARIABLES.iter().map(|row| (row, of_line(row.0)));
    let of_environment = VARIABLES.iter().map(|row| (row, variables::set(&variable, row.0)));
    for ((name, of, flag, is_open), value) in of_line.chain(of_environment) {
        let Some(value) = value.filter(|_| is_open(line)) else { continue };
        let is_theirs = match of {
            Of::Everybody => true,
            Of::Hydra => matches!(*dialect, Some(Dialect::Hydra | Dialect::Intel)),
            Of::OpenMpi => *dialect == Some(Dialect::OpenMpi),
        };
        if is_theirs {
            variables::apply(line, FLAGS, name, flag, &value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of `mpiexec FLAGS ./a` as far as they are settled here, in a line of this dialect, with these variables.
    fn heeded(dialect: Option<Dialect>, flags: &str, variables: &[(&str, &str)]) -> String {
        let mut line = Line::default();
        let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
        assert!(super::super::read(&words, &mut line).unwrap().is_none());
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        heed(&mut line, || dialect, value).unwrap();
        super::super::binding::settle(&mut line, || None);
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn variables_are_heeded_by_lines_of_their_own_launcher() {
        let (hydra, open_mpi) = (Some(Dialect::Hydra), Some(Dialect::OpenMpi));
        let check = |dialect, flags: &str, variables: &[(&str, &str)], expected: &str| {
            assert_eq!(heeded(dialect, flags, variables), expected, "{dialect:?} {flags} {variables:?}");
        };
        check(
            None,
            "",
            &[("MPIEXEC_UNIVERSE_SIZE", "9"), ("MPIEXEC_PREFIX_DEFAULT", "1")],
            "--universe-size=9 --label ./a",
        );
        check(None, "-l", &[("MPIEXEC_PREFIX_DEFAULT", "1")], "--label ./a");
        for dialect in [None, hydra, open_mpi] {
            check(dialect, "", &[("MPIEXEC_TIMEOUT", "90")], "--timeout=90 ./a");
            check(dialect, "-timeout 5", &[("MPIEXEC_TIMEOUT", "90")], "--timeout=5 ./a");
        }
        let files = [("HYDRA_HOST_FILE", "hosts"), ("OMPI_MCA_hwloc_base_binding_policy", "core")];
        check(hydra, "", &files, "--hostfile=hosts ./a");
        check(hydra, "-hosts n0", &files, "--nodelist=n0 --distribution=cyclic ./a");
        check(open_mpi, "", &files, "--cpu-bind=cores ./a");
        check(None, "", &files, "./a");
        let policy = [("PRTE_MCA_rmaps_default_mapping_policy", "node"), ("OMPI_MCA_rmaps_base_oversubscribe", "0")];
        check(open_mpi, "", &policy, "--distribution=cyclic ./a");
        check(open_mpi, "--map-by slot", &policy, "./a");
        check(open_mpi, "--byslot", &policy, "./a");
        check(open_mpi, "--map-by socket", &policy, "--cpu-bind=sockets ./a");
    }
    #[test]
    fn parameters_of_the_line_go_before_variables_and_behind_flags() {
        let variables = [("OMPI_MCA_hwloc_base_binding_policy", "socket")];
        for (flags, expected) in [
            ("", "--cpu-bind=sockets ./a"),
            ("--mca hwloc_base_binding_policy core", "--cpu-bind=cores ./a"),
            ("--mca hwloc_base_binding_policy=core", "--cpu-bind=cores ./a"),
            ("--prtemca hwloc_default_binding_policy core", "--cpu-bind=cores ./a"),
            ("--mca hwloc_base_binding_policy core --gmca hwloc_base_binding_policy none", "--cpu-bind=none ./a"),
            ("--mca hwloc_base_binding_policy core --bind-to none", "--cpu-bind=none ./a"),
            ("--mca rmaps_base_mapping_policy node", "--distribution=cyclic --cpu-bind=sockets ./a"),
            ("--mca orte_default_hostfile hosts", "--hostfile=hosts --cpu-bind=sockets ./a"),
        ] {
            assert_eq!(heeded(Some(Dialect::OpenMpi), flags, &variables), expected, "{flags}");
        }
        assert_eq!(heeded(Some(Dialect::Hydra), "--mca hwloc_base_binding_policy core", &[]), "./a");
    }
}
