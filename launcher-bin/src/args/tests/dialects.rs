//! Lines of `srun`, `mpiexec` and `mpirun`: their translations are lines of `lattice launch`.

use lattice_dialects::{Called, letters_of_srun};

use super::*;

/// Each line of the tables that is translated is accepted as well. The tables have a line of another launcher, and below it its meaning, or the
/// error after `!`.
#[test]
fn translations_of_the_tables_are_accepted() {
    let mut count = 0;
    for table in [
        include_str!("../../../../dialects/testdata/srun.txt"),
        include_str!("../../../../dialects/testdata/hydra.txt"),
        include_str!("../../../../dialects/testdata/openmpi.txt"),
    ] {
        let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        for pair in lines.chunks(2).filter(|pair| !pair[1].trim_start().starts_with('!')) {
            let words = shlex::split(pair[0]).unwrap().into_iter().map(OsString::from);
            parse(words).unwrap_or_else(|error| panic!("{}: {error}", pair[0]));
            count += 1;
        }
    }
    assert!(count > 200, "{count} lines");
}

#[test]
fn a_variable_that_is_not_there_is_warned_of() {
    let cli = parse(["lattice", "mpiexec", "-x", "node0", "./a"].map(OsString::from)).unwrap();
    assert_eq!(cli.remarks.warnings, ["-x node0: there is no such variable to pass on"]);
}

#[test]
fn a_value_that_looks_like_further_variables_is_warned_of() {
    let warned = |line: &str| parse(line.split(' ').map(OsString::from)).unwrap().remarks.warnings;
    let warnings = warned("lattice launch --env A=1,B=2 ./a");
    assert!(warnings[0].ends_with("\ntry: --env A=1 --env B=2, if these are several variables"), "{warnings:?}");
    for value in ["A=1,2", "A=x=1,y=2", "A={0,1}", "path=1,B=2", "A"] {
        assert!(warned(&format!("lattice launch --env {value} ./a")).is_empty(), "{value}");
    }
    assert!(warned("lattice launch ./a --env A=1,B=2").is_empty());
}

#[test]
fn verbosity_may_stand_before_the_command_and_behind() {
    let verbosity = |line: &str| {
        let cli = parse(line.split(' ').map(OsString::from)).unwrap();
        (cli.verbosity.quiet, cli.verbosity.verbose)
    };
    for (line, expected) in [
        ("lattice srun ./a", (false, false)),
        ("lattice -v srun ./a", (false, true)),
        ("lattice -q mpiexec ./a", (true, false)),
        ("lattice --verbose mpirun -q ./a", (true, false)),
        ("lattice --quiet srun -v ./a", (false, true)),
        // In a line of srun, `-q` takes a value of Slurm.
        ("srun -q normal ./a", (false, false)),
    ] {
        assert_eq!(verbosity(line), expected, "{line}");
    }
    assert!(Called::of(&["lattice", "-v", "launch", "srun"].map(OsString::from)).is_none());
    assert!(Called::of(&["lattice", "-v"].map(OsString::from)).is_none());
}

/// Letters of srun with another meaning in `lattice launch`: -H is that of mpirun there, and -q that of all commands. The help of
/// `lattice srun` has their meaning in its lines.
const LETTERS_OF_SRUN: [char; 2] = ['H', 'q'];

#[test]
fn a_letter_of_srun_means_the_same_in_lattice_launch_except_those_listed() {
    let launch = launch_definition();
    let (mut same, mut other) = (0, Vec::new());
    for (letter, of_srun) in letters_of_srun() {
        let Some(here) = launch.get_arguments().find(|arg| arg.get_short() == Some(letter)) else { continue };
        let names = here.get_long_and_visible_aliases().unwrap_or_default();
        match of_srun.iter().any(|name| names.contains(name)) {
            true => same += 1,
            false => other.push(letter),
        }
    }
    other.sort_unstable();
    assert_eq!(other, LETTERS_OF_SRUN);
    assert!(same > 15, "{same} letters");
}
