//! Variables that stand for flags missing in a line. Variables of the MPI standard's `mpiexec` apply to every line. Variables of Hydra, Intel
//! MPI and Open MPI apply to lines of these launchers.

use std::ffi::OsString;

use super::super::flag::{Flag, Refusal};
use super::super::line::Line;
use super::super::variables;
use super::dialect::Dialect;
use super::intel;

/// Lines that a variable applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Everybody,
    Hydra,
    Intel,
    OpenMpi,
}

/// A variable that stands for a flag.
struct Variable {
    name: &'static str,
    of: Of,
    flag: &'static str,
    /// True for a line without a setting that overrides the variable.
    is_open: fn(&Line) -> bool,
    /// Translates the value of the variable to a value of the flag; `None` if it is ignored here.
    value: fn(&str) -> Option<String>,
}

const fn row(name: &'static str, of: Of, flag: &'static str, is_open: fn(&Line) -> bool) -> Variable {
    Variable { name, of, flag, is_open, value: |value| Some(value.to_owned()) }
}

const fn read(name: &'static str, of: Of, flag: &'static str, value: fn(&str) -> Option<String>) -> Variable {
    Variable { name, of, flag, is_open: is_unbound, value }
}

/// Sources: Hydra's wiki and `mpiexec -help`, Intel MPI's developer reference, and `ompi_info` and `prte_info` of Open MPI.
const VARIABLES: &[Variable] = &[
    row("MPIEXEC_TIMEOUT", Of::Everybody, "timeout", |line| !line.has("--timeout")),
    row("MPIEXEC_UNIVERSE_SIZE", Of::Everybody, "usize", |line| !line.has("--universe-size")),
    row("MPIEXEC_PREFIX_DEFAULT", Of::Everybody, "prepend-rank", is_bare),
    row("HYDRA_HOST_FILE", Of::Hydra, "f", has_no_hosts),
    row("HYDRA_BINDING", Of::Hydra, "bind-to", is_unbound),
    row("HYDRA_MAPPING", Of::Hydra, "map-by", is_unmapped),
    row("HYDRA_MEMBIND", Of::Hydra, "membind", |line| !line.has("--mem-bind")),
    row("I_MPI_HYDRA_HOST_FILE", Of::Intel, "f", has_no_hosts),
    row("I_MPI_PERHOST", Of::Intel, "perhost", |line| !line.goes_round && line.of_each_host.is_none()),
    read("I_MPI_PIN", Of::Intel, "bind-to", intel::pin),
    read("I_MPI_PIN_PROCESSOR_LIST", Of::Intel, "bind-to", intel::pin_processor_list),
    read("I_MPI_PIN_DOMAIN", Of::Intel, "bind-to", intel::pin_domain),
    row("OMPI_MCA_orte_default_hostfile", Of::OpenMpi, "hostfile", has_no_hosts),
    row("PRTE_MCA_prte_default_hostfile", Of::OpenMpi, "hostfile", has_no_hosts),
    row("OMPI_MCA_rmaps_rank_file_path", Of::OpenMpi, "rankfile", has_no_hosts),
    row("OMPI_MCA_orte_rankfile", Of::OpenMpi, "rankfile", has_no_hosts),
    row("OMPI_MCA_hwloc_base_binding_policy", Of::OpenMpi, "bind-to", is_unbound),
    row("PRTE_MCA_hwloc_default_binding_policy", Of::OpenMpi, "bind-to", is_unbound),
    row("OMPI_MCA_hwloc_base_bind_to_core", Of::OpenMpi, "bind-to-core", is_unbound),
    row("OMPI_MCA_hwloc_base_bind_to_socket", Of::OpenMpi, "bind-to-socket", is_unbound),
    row("OMPI_MCA_hwloc_base_cpu_list", Of::OpenMpi, "cpu-list", is_unbound),
    row("OMPI_MCA_hwloc_base_cpu_set", Of::OpenMpi, "cpu-list", is_unbound),
    row("PRTE_MCA_hwloc_default_cpu_list", Of::OpenMpi, "cpu-list", is_unbound),
    row("OMPI_MCA_hwloc_base_use_hwthreads_as_cpus", Of::OpenMpi, "use-hwthread-cpus", |line| {
        !line.places.counts_threads
    }),
    row("OMPI_MCA_hwloc_base_report_bindings", Of::OpenMpi, "report-bindings", is_hidden),
    row("OMPI_MCA_rmaps_base_display_map", Of::OpenMpi, "display-map", is_hidden),
    row("OMPI_MCA_rmaps_base_display_devel_map", Of::OpenMpi, "display-devel-map", is_hidden),
    row("OMPI_MCA_rmaps_base_display_topo_with_map", Of::OpenMpi, "display-map", is_hidden),
    row("OMPI_MCA_orte_display_alloc", Of::OpenMpi, "display-allocation", is_hidden),
    row("OMPI_MCA_orte_default_dash_host", Of::OpenMpi, "host", has_no_hosts),
    row("OMPI_MCA_rmaps_base_mapping_policy", Of::OpenMpi, "map-by", is_unmapped),
    row("PRTE_MCA_rmaps_default_mapping_policy", Of::OpenMpi, "map-by", is_unmapped),
    row("OMPI_MCA_rmaps_base_bynode", Of::OpenMpi, "bynode", is_unmapped),
    row("OMPI_MCA_rmaps_base_byslot", Of::OpenMpi, "byslot", is_unmapped),
    row("OMPI_MCA_rmaps_base_bycore", Of::OpenMpi, "bycore", is_unmapped),
    row("OMPI_MCA_rmaps_base_pattern", Of::OpenMpi, "ppr", is_unmapped),
    row("OMPI_MCA_rmaps_ppr_pattern", Of::OpenMpi, "ppr", is_unmapped),
    row("OMPI_MCA_rmaps_base_pernode", Of::OpenMpi, "pernode", is_unmapped),
    row("OMPI_MCA_rmaps_base_n_pernode", Of::OpenMpi, "npernode", is_unmapped),
    row("OMPI_MCA_rmaps_base_n_persocket", Of::OpenMpi, "npersocket", is_unmapped),
    row("OMPI_MCA_rmaps_ppr_pernode", Of::OpenMpi, "pernode", is_unmapped),
    row("OMPI_MCA_rmaps_ppr_n_pernode", Of::OpenMpi, "npernode", is_unmapped),
    row("OMPI_MCA_rmaps_ppr_n_persocket", Of::OpenMpi, "npersocket", is_unmapped),
    row("OMPI_MCA_rmaps_base_cpus_per_proc", Of::OpenMpi, "cpus-per-rank", |line| line.places.cores.is_none()),
    row("OMPI_MCA_rmaps_base_cpus_per_rank", Of::OpenMpi, "cpus-per-rank", |line| line.places.cores.is_none()),
    row("OMPI_MCA_rmaps_base_ranking_policy", Of::OpenMpi, "rank-by", is_unranked),
    row("PRTE_MCA_rmaps_default_ranking_policy", Of::OpenMpi, "rank-by", is_unranked),
    row("OMPI_MCA_rmaps_base_oversubscribe", Of::OpenMpi, "oversubscribe", |line| !line.places.overcommit),
    row("OMPI_MCA_orte_tag_output", Of::OpenMpi, "tag-output", is_bare),
    row("OMPI_MCA_orte_timestamp_output", Of::OpenMpi, "timestamp-output", |line| !line.has("--timestamp")),
    row("OMPI_MCA_orte_do_not_launch", Of::OpenMpi, "do-not-launch", |line| !line.has("--dry-run")),
    row("OMPI_MCA_orte_enable_recovery", Of::OpenMpi, "enable-recovery", |line| !line.has("--kill-on-bad-exit")),
    Variable {
        name: "OMPI_MCA_orte_abort_on_non_zero_status",
        of: Of::OpenMpi,
        flag: "continuous",
        is_open: |line| !line.has("--kill-on-bad-exit"),
        // The flag has the opposite meaning.
        value: |value| (!variables::is_on(value.as_ref())).then(|| "1".to_owned()),
    },
];

/// Ignored variables, with the lines that they apply to; `-v` reports them. They configure the connection to nodes, output about the launcher
/// itself, or features without an effect here. Variables that a shell in an allocation sets for these launchers are omitted.
const IDLE: &[(&str, Of)] = &[
    ("HYDRA_ENV", Of::Hydra),
    ("HYDRA_DEBUG", Of::Hydra),
    ("HYDRA_TOPO_DEBUG", Of::Hydra),
    ("HYDRA_IFACE", Of::Hydra),
    ("HYDRA_RMK", Of::Hydra),
    ("HYDRA_TOPOLIB", Of::Hydra),
    ("HYDRA_LAUNCHER_EXTRA_ARGS", Of::Hydra),
    ("HYDRA_HOSTNAME_PROPAGATION", Of::Hydra),
    ("HYDRA_PROXY_RETRY_COUNT", Of::Hydra),
    ("HYDRA_USE_LOCALHOST", Of::Hydra),
    ("MPIEXEC_PORT_RANGE", Of::Hydra),
    ("MPIEXEC_PORTRANGE", Of::Hydra),
    ("I_MPI_PIN_ORDER", Of::Intel),
    ("I_MPI_PIN_CELL", Of::Intel),
    ("I_MPI_PIN_RESPECT_CPUSET", Of::Intel),
    ("I_MPI_PIN_RESPECT_HCA", Of::Intel),
    ("I_MPI_HYDRA_DEBUG", Of::Intel),
    ("I_MPI_HYDRA_IFACE", Of::Intel),
    ("I_MPI_HYDRA_RMK", Of::Intel),
    ("I_MPI_HYDRA_TOPOLIB", Of::Intel),
    ("I_MPI_HYDRA_BRANCH_COUNT", Of::Intel),
    ("I_MPI_HYDRA_NAMESERVER", Of::Intel),
    ("I_MPI_PORT_RANGE", Of::Intel),
    ("I_MPI_JOB_STARTUP_TIMEOUT", Of::Intel),
    ("I_MPI_JOB_TIMEOUT_SIGNAL", Of::Intel),
    ("I_MPI_JOB_ABORT_SIGNAL", Of::Intel),
    ("OMPI_MCA_orte_xml_output", Of::OpenMpi),
    ("OMPI_MCA_orte_xml_file", Of::OpenMpi),
    ("OMPI_MCA_orte_set_default_slots", Of::OpenMpi),
    ("OMPI_MCA_orte_fork_agent", Of::OpenMpi),
    ("OMPI_MCA_orte_map_stddiag_to_stdout", Of::OpenMpi),
    ("OMPI_MCA_rmaps_base_no_oversubscribe", Of::OpenMpi),
    ("OMPI_MCA_iof_base_redirect_app_stderr_to_stdout", Of::OpenMpi),
    ("OMPI_MCA_orte_launch_agent", Of::OpenMpi),
    ("OMPI_MCA_orte_rsh_agent", Of::OpenMpi),
    ("OMPI_MCA_orte_xterm", Of::OpenMpi),
    ("OMPI_MCA_rmaps_base_no_schedule_local", Of::OpenMpi),
    ("OMPI_MCA_rmaps_base_inherit", Of::OpenMpi),
    ("OMPI_MCA_rmaps_dist_device", Of::OpenMpi),
    ("OMPI_MCA_hwloc_base_topo_file", Of::OpenMpi),
    ("OMPI_MCA_hwloc_base_slot_list", Of::OpenMpi),
    ("OMPI_MCA_mca_base_env_list", Of::OpenMpi),
    ("OMPI_MCA_ras_base_launch_orted_on_hn", Of::OpenMpi),
];

/// True for lines without labels.
fn is_bare(line: &Line) -> bool {
    !line.has("--label")
}

/// True for lines that do not print their map.
fn is_hidden(line: &Line) -> bool {
    !line.has("--show-map")
}

fn is_unranked(line: &Line) -> bool {
    !line.has("--rank-by")
}

/// Each variable that stands for a flag, with the launchers that read it, and the flag.
#[cfg(test)]
pub(super) fn all() -> Vec<(&'static str, &'static str, &'static str)> {
    let of = |of| match of {
        Of::Everybody => "all",
        Of::Hydra => "MPICH and Intel MPI",
        Of::Intel => "Intel MPI",
        Of::OpenMpi => "Open MPI",
    };
    VARIABLES.iter().map(|row| (row.name, of(row.of), row.flag)).collect()
}

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

/// Prefixes of variables that stand for parameters of Open MPI.
const PARAMETERS: [&str; 2] = ["OMPI_MCA_", "PRTE_MCA_"];

/// The parameter of Open MPI that a variable stands for.
fn parameter_of(variable: &str) -> Option<&str> {
    PARAMETERS.iter().find_map(|prefix| variable.strip_prefix(prefix))
}

/// Name and value of `NAME=VALUE`, if NAME is a parameter of Open MPI's launcher with an equivalent flag.
pub(super) fn parameter(pair: &str) -> Option<(&str, &str)> {
    let (name, value) = pair.split_once('=')?;
    VARIABLES.iter().any(|variable| parameter_of(variable.name) == Some(name)).then_some((name, value))
}

/// Adds the flags for parameters of the line, then for variables, by the table of flags.
pub(super) fn heed(
    line: &mut Line,
    flags: &'static [Flag],
    dialect: Dialect,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Refusal> {
    let parameters = std::mem::take(&mut line.parameters);
    let of_line = |variable: &str| {
        let name = parameter_of(variable)?;
        parameters.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let is_theirs = |of: Of| match of {
        Of::Everybody => true,
        Of::Hydra => matches!(dialect, Dialect::Hydra | Dialect::Intel),
        Of::Intel => dialect == Dialect::Intel,
        Of::OpenMpi => dialect == Dialect::OpenMpi,
    };
    let of_line = VARIABLES.iter().map(|row| (row, of_line(row.name)));
    let of_environment = VARIABLES.iter().map(|row| (row, variables::set(&variable, row.name)));
    for (row, value) in of_line.chain(of_environment) {
        let Some(value) = value.filter(|_| (row.is_open)(line)).filter(|_| is_theirs(row.of)) else { continue };
        match (row.value)(&value.to_string_lossy()) {
            Some(meant) => {
                let told = value.to_string_lossy();
                variables::apply_as(line, flags, (row.name, &told), row.flag, meant.as_ref())?;
            }
            None => line.note(format!("{}={} is ignored here", row.name, value.display())),
        }
    }
    for (name, of) in IDLE {
        if let Some(value) = variables::set(&variable, name).filter(|_| is_theirs(*of)) {
            line.note(format!("{name}={} is ignored here: it is a setting of another launcher", value.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::FLAGS;
    use super::*;

    /// Translation of `mpiexec FLAGS ./a` in this dialect with these variables, as far as it depends on them and on the binding.
    fn heeded(dialect: Dialect, flags: &str, variables: &[(&str, &str)]) -> String {
        let mut line = Line::default();
        let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
        assert!(super::super::read(&words, dialect, &mut line).unwrap().is_none());
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        heed(&mut line, FLAGS, dialect, value).unwrap();
        super::super::binding::settle(&mut line, dialect);
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn variables_are_heeded_by_lines_of_their_own_launcher() {
        let (hydra, open_mpi) = (Dialect::Hydra, Dialect::OpenMpi);
        let check = |dialect, flags: &str, variables: &[(&str, &str)], expected: &str| {
            assert_eq!(heeded(dialect, flags, variables), expected, "{dialect:?} {flags} {variables:?}");
        };
        check(
            hydra,
            "",
            &[("MPIEXEC_UNIVERSE_SIZE", "9"), ("MPIEXEC_PREFIX_DEFAULT", "1")],
            "--universe-size=9 --label ./a",
        );
        check(hydra, "-l", &[("MPIEXEC_PREFIX_DEFAULT", "1")], "--label ./a");
        let limit = [("MPIEXEC_TIMEOUT", "90")];
        check(hydra, "", &limit, "--timeout=90 ./a");
        check(hydra, "-timeout 5", &limit, "--timeout=5 ./a");
        check(open_mpi, "--bind-to none", &limit, "--timeout=90 --cpu-bind=none ./a");
        let files = [("HYDRA_HOST_FILE", "hosts"), ("OMPI_MCA_hwloc_base_binding_policy", "core")];
        check(hydra, "", &files, "--hostfile=hosts ./a");
        check(hydra, "-hosts n0", &files, "--nodelist=n0 --distribution=cyclic ./a");
        check(open_mpi, "", &files, "--cpu-bind=cores:over=numa ./a");
        let policy = [("PRTE_MCA_rmaps_default_mapping_policy", "node"), ("OMPI_MCA_rmaps_base_oversubscribe", "0")];
        let usual = "--cpu-bind=numa:over=numa:or-none ./a";
        check(open_mpi, "", &policy, &format!("--distribution=cyclic {usual}"));
        check(open_mpi, "--map-by slot", &policy, usual);
        check(open_mpi, "--byslot", &policy, usual);
        check(open_mpi, "--map-by socket", &policy, "--cpu-bind=sockets ./a");
        let hydra_words = [("HYDRA_MAPPING", "socket"), ("HYDRA_BINDING", "core:2"), ("HYDRA_MEMBIND", "bind:numa")];
        check(hydra, "", &hydra_words, "--mem-bind=local --cpu-bind=cores:cores=2:over=sockets:overcommit ./a");
        check(hydra, "-bind-to none -membind none", &hydra_words, "--mem-bind=none --cpu-bind=none ./a");
        let intel = Dialect::Intel;
        for (pin, bound) in [
            (("I_MPI_PIN", "off"), "--cpu-bind=none ./a"),
            (("I_MPI_PIN", "1"), "--cpu-bind=cores:even:overcommit ./a"),
            (("I_MPI_PIN_DOMAIN", "socket"), "--cpu-bind=sockets ./a"),
            (("I_MPI_PIN_DOMAIN", "4:compact"), "--cpu-bind=cores:even:overcommit ./a"),
            (("I_MPI_PIN_PROCESSOR_LIST", "0-1,4"), "--cpu-bind=map:0,1,4 ./a"),
            (("I_MPI_PERHOST", "1"), "--tasks-per-node=1 --cpu-bind=cores:even:overcommit ./a"),
        ] {
            check(intel, "", &[pin], bound);
            check(hydra, "", &[pin], "./a");
        }
        let shown = [("OMPI_MCA_orte_tag_output", "1"), ("OMPI_MCA_rmaps_base_ranking_policy", "node")];
        check(open_mpi, "--bind-to none", &shown, "--rank-by=node --label --cpu-bind=none ./a");
        check(open_mpi, "--bind-to none --rank-by slot", &shown, "--rank-by=slot --label --cpu-bind=none ./a");
        let goes_on = [("OMPI_MCA_orte_abort_on_non_zero_status", "0")];
        check(open_mpi, "--bind-to none", &goes_on, "--kill-on-bad-exit=0 --cpu-bind=none ./a");
        let npernode = [("OMPI_MCA_rmaps_ppr_n_pernode", "2")];
        check(open_mpi, "--bind-to none", &npernode, "--tasks-per-node=2 --cpu-bind=none ./a");
        check(open_mpi, "--bind-to none --npernode 1", &npernode, "--tasks-per-node=1 --cpu-bind=none ./a");
    }

    #[test]
    fn variables_that_choose_nothing_are_told_to_their_own() {
        let notes = |dialect| {
            let mut line = Line::default();
            let value = |name: &str| {
                ["HYDRA_ENV", "I_MPI_PIN_DOMAIN", "OMPI_MCA_orte_xterm"].contains(&name).then(|| "omp".into())
            };
            heed(&mut line, FLAGS, dialect, value).unwrap();
            line.finish().notes
        };
        let hydra = "HYDRA_ENV=omp is ignored here: it is a setting of another launcher";
        assert_eq!(notes(Dialect::Hydra), [hydra]);
        assert_eq!(notes(Dialect::Intel), ["I_MPI_PIN_DOMAIN=omp is ignored here", hydra]);
        assert!(notes(Dialect::OpenMpi)[0].starts_with("OMPI_MCA_orte_xterm=omp is ignored here"));
    }

    #[test]
    fn parameters_of_the_line_go_before_variables_and_behind_flags() {
        let variables = [("OMPI_MCA_hwloc_base_binding_policy", "socket")];
        for (flags, expected) in [
            ("", "--cpu-bind=sockets ./a"),
            ("--mca hwloc_base_binding_policy core", "--cpu-bind=cores:over=numa ./a"),
            ("--mca hwloc_base_binding_policy=core", "--cpu-bind=cores:over=numa ./a"),
            ("--prtemca hwloc_default_binding_policy core", "--cpu-bind=cores:over=numa ./a"),
            ("--mca hwloc_base_binding_policy core --gmca hwloc_base_binding_policy none", "--cpu-bind=none ./a"),
            ("--mca hwloc_base_binding_policy core --bind-to none", "--cpu-bind=none ./a"),
            ("--mca rmaps_base_mapping_policy node", "--distribution=cyclic --cpu-bind=sockets ./a"),
            ("--mca orte_default_hostfile hosts", "--hostfile=hosts --cpu-bind=sockets ./a"),
        ] {
            assert_eq!(heeded(Dialect::OpenMpi, flags, &variables), expected, "{flags}");
        }
        assert_eq!(heeded(Dialect::Hydra, "--mca hwloc_base_binding_policy core", &[]), "./a");
    }
}
