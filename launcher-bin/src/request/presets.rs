//! `--preset`: variables that a kind of programs needs from its launcher, as data. The presets of Lattice are in `presets.toml` in this
//! directory. The presets of a user are in `~/.config/lattice/presets.toml`. They have the same form, and override presets of Lattice with the
//! same name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lattice_console::formatting::nearest;
use lattice_console::machine::Machine;
use lattice_session::rank_values::{self, NAMES};
use serde::Deserialize;

use super::user_tables::{UserTables, UserTablesError};

/// Presets of Lattice.
const OURS: &str = include_str!("presets.toml");

/// Refusal of a preset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PresetError {
    /// No preset has this name.
    #[error("--preset {name}: there is none of this name{}; there are\n{known}\ntry: --preset {nearest}{}", file.as_ref().map(|file| format!(" here or in {}", file.display())).unwrap_or_default(), own_preset(name, file.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The user's file, which need not exist.
        file: Option<PathBuf>,
        /// All presets, one on each line.
        known: String,
        /// Most similar name of a preset.
        nearest: String,
    },
    /// The file of the user cannot be used.
    #[error("--preset: {0}")]
    File(#[from] UserTablesError),
    /// A value contains an unknown name in braces.
    #[error("--preset {preset}: {variable} has {{{name}}} in its value, which means nothing; there are {}", names())]
    Name {
        /// The preset.
        preset: String,
        /// The variable.
        variable: String,
        /// Text in the braces.
        name: String,
    },
}

/// Hint how to define a preset.
fn own_preset(name: &str, file: Option<&Path>) -> String {
    file.map(|file| format!("; or write a table [{name}] with `about` and `env` to {}", file.display()))
        .unwrap_or_default()
}

fn names() -> String {
    NAMES.map(|(name, _)| format!("{{{name}}}")).join(", ")
}

/// Variables of one kind of programs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    /// Purpose of the preset.
    about: String,
    env: BTreeMap<String, String>,
}

type Presets = BTreeMap<String, Preset>;

/// Variables of presets, in the order of `names`.
pub(super) fn variables(names: &[String], machine: &Machine) -> Result<Vec<(OsString, OsString)>, PresetError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let presets = UserTables::<Preset>::read(OURS, "presets.toml", machine)?;
    let mut variables = Vec::new();
    for name in names {
        let preset = presets.get(name)?.ok_or_else(|| unknown(name, &presets.tables, presets.file.clone()))?;
        for (variable, value) in &preset.1.env {
            check(name, variable, value)?;
            variables.push((variable.into(), value.into()));
        }
    }
    Ok(variables)
}

fn unknown(name: &str, presets: &Presets, file: Option<PathBuf>) -> PresetError {
    let known: Vec<String> = presets.iter().map(|(name, preset)| format!("  {name}: {}", preset.about)).collect();
    let nearest = nearest(name, presets.keys()).unwrap_or_default().to_owned();
    PresetError::Unknown { name: name.to_owned(), file, known: known.join("\n"), nearest }
}

/// Refuses unknown names in braces, because they would reach the program unchanged.
fn check(preset: &str, variable: &str, value: &str) -> Result<(), PresetError> {
    for word in value.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(word, _)| word) {
        let is_word = !word.is_empty() && word.chars().all(|char| char.is_ascii_lowercase() || char == '_');
        if is_word && !rank_values::has_names(format!("{{{word}}}").as_ref()) {
            let [preset, variable, name] = [preset, variable, word].map(str::to_owned);
            return Err(PresetError::Name { preset, variable, name });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine with this presets file of the user.
    fn machine(directory: &Path, text: Option<&str>) -> Machine {
        if let Some(text) = text {
            fs::create_dir_all(directory.join("lattice")).unwrap();
            fs::write(directory.join("lattice/presets.toml"), text).unwrap();
        }
        let mut machine = crate::prepared::tests::machine();
        machine.environment.push(("XDG_CONFIG_HOME".into(), directory.into()));
        machine
    }

    fn variables_of(name: &str, text: Option<&str>) -> Result<Vec<(OsString, OsString)>, String> {
        let directory = tempfile::tempdir().unwrap();
        variables(&[name.to_owned()], &machine(directory.path(), text)).map_err(|error| error.to_string())
    }

    #[test]
    fn ours_can_be_read_and_mean_something() {
        let presets: Presets = toml::from_str(OURS).unwrap();
        assert_eq!(presets.keys().collect::<Vec<_>>(), ["jax", "nccl", "torch"]);
        for name in presets.keys() {
            assert!(!variables_of(name, None).unwrap().is_empty(), "{name}");
        }
        let torch = variables_of("torch", None).unwrap();
        assert!(torch.contains(&("MASTER_ADDR".into(), "{head}".into())), "{torch:?}");
    }

    #[test]
    fn a_user_adds_presets_and_replaces_ours() {
        let text =
            "[mine]\nabout = 'of mine'\nenv = { A = '{rank}' }\n[torch]\nabout = 'less'\nenv = { RANK = 'r{rank}' }";
        assert_eq!(variables_of("mine", Some(text)).unwrap(), [("A".into(), "{rank}".into())]);
        assert_eq!(variables_of("torch", Some(text)).unwrap(), [("RANK".into(), "r{rank}".into())]);
        assert!(variables_of("jax", Some(text)).is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_there_is() {
        let error = variables_of("pytorch", None).unwrap_err();
        assert!(
            error.starts_with("--preset pytorch: there is none of this name here or in ")
                && error.contains("torch: PyTorch"),
            "{error}"
        );
        variables_of("torch", Some("[mine]\nabot = 'x'")).unwrap();
        let error = variables_of("mine", Some("[mine]\nabot = 'x'")).unwrap_err();
        assert!(error.contains("presets.toml: ") && error.contains("abot"), "{error}");
        let error = variables_of("mine", Some("[mine]\nabout = ''\nenv = { A = '{ranks}' }")).unwrap_err();
        assert!(
            error.starts_with("--preset mine: A has {ranks} in its value, which means nothing; there are {rank}, "),
            "{error}"
        );
    }
}
