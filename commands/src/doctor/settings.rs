//! The settings in force, each with its source.

use std::path::Path;

use lattice_cluster_client::Source;
use lattice_console::environment;
use lattice_console::environment::user_file;

use super::check::{Check, Subject};

/// Settings that a variable gives: name, variable, default.
const VARIABLES: [(&str, &str, &str); 9] = [
    ("allocation", environment::ALLOCATION, "none: launches run on this machine"),
    ("via", "LATTICE_VIA", "the allocation of a batch system around this command, else none"),
    ("hosts", "LATTICE_HOSTS", "none"),
    ("sets", "LATTICE_SETS", "~/.lattice/sets"),
    ("tmpdir", "LATTICE_TMPDIR", "none"),
    ("container profile", "LATTICE_CONTAINER_PROFILE", "the first runtime in PATH"),
    ("slurm-env", "LATTICE_SLURM_ENV", "off"),
    ("mpiexec rules", "LATTICE_MPIEXEC", "those of the MPI library of the program"),
    ("log", "LATTICE_LOG", "none"),
];

/// Files of the user that extend tables of Lattice.
const TABLES: [&str; 2] = ["containers.toml", "presets.toml"];

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let environment = subject.environment();
    let variable = |&(name, variable, default): &(&str, &'static str, &str)| {
        let set = environment::value(environment, variable).map(|value| value.to_string_lossy());
        let (value, source) = match set {
            Some(value) if variable == environment::ALLOCATION && value.is_empty() => return empty_allocation(),
            Some(value) if !value.is_empty() => (value.into_owned(), Source::Variable(variable)),
            _ => (default.to_owned(), Source::Default),
        };
        setting(name, &value, &source)
    };
    let table = |name: &&str| {
        let path = user_file(name, environment).filter(|path| path.exists())?;
        Some(setting(name, "in use", &Source::File(path)))
    };
    let file = std::iter::once(config_file(subject));
    file.chain(VARIABLES.iter().map(variable)).chain(TABLES.iter().filter_map(table)).collect()
}

/// A setting with its source.
pub(super) fn setting(name: &str, value: &str, source: &Source) -> Check {
    Check::ok(format!("setting {name}"), format!("{value} ({source})"))
}

fn empty_allocation() -> Check {
    let name = environment::ALLOCATION;
    Check::error("setting allocation", format!("{name} is empty: it names no allocation"), format!("unset {name}"))
}

fn config_file(subject: &Subject) -> Check {
    const NAME: &str = "config file";
    match lattice_cluster_client::config_file(subject.environment()) {
        Ok(Some(path)) => Check::ok(NAME, path.display().to_string()),
        Ok(None) => {
            let user = user_file("config.toml", subject.environment());
            let places = user.as_deref().into_iter().chain([Path::new(lattice_cluster_client::SYSTEM_CONFIG)]);
            let places: Vec<String> = places.map(|path| path.display().to_string()).collect();
            Check::ok(NAME, format!("none: {} not there", places.join(" and ")))
        }
        Err(error) => Check::failed(NAME, &error.to_string(), "correct the file"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::check::State;
    use super::super::check::subject;
    use super::*;

    fn found(variables: &[(&str, &str)], name: &str) -> Check {
        let environment = variables.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let checks = checks(&subject(environment));
        checks.into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_setting_has_its_source() {
        let check = |variables: &[_], name, expected| assert_eq!(found(variables, name).detail, expected);
        check(&[], "setting log", "none (default)");
        check(&[("LATTICE_LOG", "info")], "setting log", "info (variable LATTICE_LOG)");
        check(&[("LATTICE_ALLOC_ID", "7f3k")], "setting allocation", "7f3k (variable LATTICE_ALLOC_ID)");
        assert_eq!(found(&[("LATTICE_ALLOC_ID", "")], "setting allocation").state, State::Error);
    }

    #[test]
    fn the_config_file_is_named_or_its_fault() {
        let home = tempfile::tempdir().unwrap();
        let variables = [("XDG_CONFIG_HOME", home.path().to_str().unwrap())];
        fs::create_dir(home.path().join("lattice")).unwrap();
        let file = home.path().join("lattice/config.toml");
        assert!(found(&variables, "config file").detail.starts_with(&format!("none: {}", file.display())));
        fs::write(&file, "api = 'unix:/file'").unwrap();
        assert_eq!(found(&variables, "config file"), Check::ok("config file", file.display().to_string()));
        fs::write(&file, "apl = 'x'").unwrap();
        let refused = found(&variables, "config file");
        assert_eq!((refused.state, refused.action.as_deref()), (State::Error, Some("correct the file")));
        fs::write(home.path().join("lattice/presets.toml"), "").unwrap();
        assert!(found(&variables, "setting presets.toml").detail.starts_with("in use (file "));
    }
}
