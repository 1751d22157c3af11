//! Values of `--pmi`: the protocols that ranks can use, and the output of `--pmi=list`.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueEnum};

/// Value of `--pmi` that lists the other values.
const PMI_LIST: &str = "list";

/// Values of `--pmi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Pmi {
    /// The protocol of each rank: PMI-1, PMI-2 or PMIx.
    Auto,
    /// PMI-1 only, as of MPICH, Intel MPI and MVAPICH.
    Pmi1,
    /// PMI-2 only, as of MPICH and MVAPICH built for it, and of libpmi2.
    Pmi2,
    /// PMIx only, as of Open MPI 4 and 5.
    Pmix,
    /// No protocol: the ranks are independent programs.
    None,
}

/// Values of `--exchange`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exchange {
    /// The cheaper of full and lazy.
    Auto,
    /// To all nodes.
    Full,
    /// To nodes that request the data.
    Lazy,
}

/// Values of `--restartable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Restartable {
    /// Keys of the first run can be read.
    Keep,
    /// Keys of the first run cannot be read.
    Fresh,
}

/// Parses `--pmi`. For `list`, it returns the output as an error, as clap does for `--help`, regardless of all other words of the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct PmiParser;

impl TypedValueParser for PmiParser {
    type Value = Pmi;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Pmi, clap::Error> {
        if value == PMI_LIST {
            return Err(clap::Error::raw(ErrorKind::DisplayHelp, served_protocols()));
        }
        let value = value.to_str().and_then(word_of_srun).unwrap_or(value);
        EnumValueParser::<Pmi>::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let list = PossibleValue::new(PMI_LIST).help("Print what is possible, and start nothing");
        Some(Box::new(Pmi::value_variants().iter().filter_map(Pmi::to_possible_value).chain([list])))
    }
}

/// The name here for a value of `srun --mpi` that has another name. Values of vendors mean any protocol of the ranks.
fn word_of_srun(value: &str) -> Option<&'static OsStr> {
    match value {
        "openmpi" | "cray_shasta" => Some(OsStr::new("auto")),
        value if value.starts_with("pmix_v") => Some(OsStr::new("pmix")),
        _ => None,
    }
}

/// The values of `--pmi`, one on each line, and the versions that this build serves.
fn served_protocols() -> String {
    let known = Pmi::value_variants().iter().filter_map(Pmi::to_possible_value);
    let line = |value: PossibleValue| {
        let what = value.get_help().map(ToString::to_string).unwrap_or_default();
        format!("{:<6}{what}\n", value.get_name())
    };
    let versions = lattice_session::PMI_VERSIONS;
    let versions = format!(
        "\nThis build serves {versions}. `capabilities` of `lattice nodes --json` has the protocols of each node.\n"
    );
    known.map(line).chain([versions]).collect()
}
