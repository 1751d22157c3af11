//! Values of single flags of a launch: their parsers, and the errors for invalid values.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use lattice_session::request::UniverseSize;
use lattice_session::template::{Template, TemplateError};

/// Value of `--stdin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// No rank reads standard input.
    None,
    /// One rank reads the standard input of this process.
    Rank(u32),
    /// Every rank reads a copy of it.
    All,
    /// Every rank reads this file. The fields are the file name as typed, and as a template.
    File(PathBuf, Template),
}

impl Stdin {
    pub(super) fn parse(text: OsString) -> Result<Self, TemplateError> {
        Ok(match text.to_str() {
            Some("none") => Self::None,
            Some("all") => Self::All,
            Some(number) if number.parse::<u32>().is_ok() => Self::Rank(number.parse().unwrap_or_default()),
            _ => {
                let template = Template::parse(&text)?;
                Self::File(text.into(), template)
            }
        })
    }
}

/// A variable named by `--env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvSetting {
    /// Name of the variable.
    pub name: OsString,
    /// Value of the variable; `None` means the value in the environment of this process.
    pub value: Option<OsString>,
}

/// Error for an invalid variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvSettingError {
    /// The name before the `=` is empty.
    #[error("the name of the variable is missing; NAME=VALUE or NAME is possible")]
    NoName,
    /// A `*` is not at the end of the name.
    #[error("`*` is possible at the end of a name only")]
    Star,
    /// The name contains a `=`.
    #[error("a name has no `=` in it")]
    Equals,
}

impl EnvSetting {
    /// A warning about a value that looks like several variables, such as `A=1,B=2` in srun's `--export`.
    pub(super) fn of_several(&self) -> Option<String> {
        let (name, value) = (self.name.to_str()?, self.value.as_ref()?.to_str()?);
        let is_name = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
                && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        };
        let sets = |entry: &str| entry.split_once('=').is_some_and(|(name, _)| is_name(name));
        let entries = value.split(',').collect::<Vec<_>>();
        (is_name(name) && entries.len() > 1 && entries[1..].iter().all(|entry| sets(entry))).then(|| {
            let each = entries[1..].iter().map(|entry| format!(" --env {entry}")).collect::<String>();
            format!(
                "--env {name}={value} sets {name} alone, to all that follows its =\ntry: --env {name}={}{each}, if these are several variables",
                entries[0]
            )
        })
    }

    pub(super) fn parse(text: OsString) -> Result<Self, EnvSettingError> {
        let bytes = text.as_bytes();
        let equals = bytes.iter().position(|&byte| byte == b'=');
        let name = &bytes[..equals.unwrap_or(bytes.len())];
        if name.is_empty() {
            return Err(EnvSettingError::NoName);
        }
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Ok(Self { name: os(name), value: equals.map(|equals| os(&bytes[equals + 1..])) })
    }
}

pub(super) fn variable_pattern(text: &str) -> Result<String, EnvSettingError> {
    let name = text.strip_suffix('*').unwrap_or(text);
    match () {
        () if text.is_empty() => Err(EnvSettingError::NoName),
        () if name.contains('*') => Err(EnvSettingError::Star),
        () if name.contains('=') => Err(EnvSettingError::Equals),
        () => Ok(text.to_owned()),
    }
}

/// Error for an invalid number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankCountError {
    /// The number is 0.
    #[error("a job has at least 1 rank")]
    Zero,
    /// The number is above the maximum of MPI, [`i32::MAX`].
    #[error("MPI counts ranks up to {max}", max = i32::MAX)]
    TooMany,
    /// The text is no number.
    #[error("it is not a positive whole number")]
    NotANumber,
}

pub(super) fn rank_count(text: &str) -> Result<u32, RankCountError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        Ok(0) => Err(RankCountError::Zero),
        Ok(count) if i32::try_from(count).is_ok() => Ok(count),
        Err(_) if !digits => Err(RankCountError::NotANumber),
        _ => Err(RankCountError::TooMany),
    }
}

/// Parses a number of ranks, or `slots`.
pub(super) fn universe_size(text: &str) -> Result<UniverseSize, String> {
    match text {
        "slots" => Ok(UniverseSize::Slots),
        _ => rank_count(text).map(UniverseSize::Number).map_err(|error| format!("{error}; slots is possible, too")),
    }
}

/// A number of nodes, srun's `MIN-MAX`, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// Minimum number of nodes.
    pub least: u32,
    /// Maximum number of nodes, used if there are as many.
    pub most: u32,
    /// True if the launch takes nodes without ranks, for jobs that ranks spawn.
    pub without_ranks: bool,
}

impl NodeCount {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self { least: 1, most: u32::MAX, without_ranks: true });
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|&number| number > 0);
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let count = number(least).zip(number(most)).filter(|(least, most)| least <= most);
        let count = count.map(|(least, most)| Self { least, most, without_ranks: false });
        count.ok_or_else(|| format!("a number of nodes from 1 to {} is possible, or MIN-MAX, or all", u32::MAX))
    }
}

/// Parses the number of nodes of one program of several.
pub(super) fn node_count(text: &str) -> Result<u32, String> {
    match NodeCount::parse(text)? {
        NodeCount { least, most, .. } if least == most => Ok(least),
        NodeCount { without_ranks: true, .. } => Err("a program after a `:` has one number of nodes".to_owned()),
        NodeCount { least, most, .. } => {
            Err(format!("a program after a `:` has one number of nodes; type -N {least} or -N {most}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_taken_as_they_are() {
        let check = |text: &str, name: &str, value: Option<&str>| {
            let expected = EnvSetting { name: name.into(), value: value.map(OsString::from) };
            assert_eq!(EnvSetting::parse(text.into()), Ok(expected));
        };
        check("A=1", "A", Some("1"));
        check("A=", "A", Some(""));
        check("A=b=c", "A", Some("b=c"));
        check("A", "A", None);
    }

    #[test]
    fn variables_without_a_name_are_refused() {
        assert_eq!(EnvSetting::parse("=1".into()), Err(EnvSettingError::NoName));
        assert_eq!(EnvSetting::parse("".into()), Err(EnvSettingError::NoName));
        let check = |text: &str, expected: Result<&str, EnvSettingError>| {
            assert_eq!(variable_pattern(text), expected.map(str::to_owned), "{text}");
        };
        check("A", Ok("A"));
        check("A*", Ok("A*"));
        check("*", Ok("*"));
        check("", Err(EnvSettingError::NoName));
        check("A*B", Err(EnvSettingError::Star));
        check("**", Err(EnvSettingError::Star));
        check("A=1", Err(EnvSettingError::Equals));
    }

    #[test]
    fn a_number_of_ranks_is_one_that_mpi_can_count() {
        let check =
            |text: &str, expected: Result<u32, RankCountError>| assert_eq!(rank_count(text), expected, "{text}");
        check("1", Ok(1));
        check("2147483647", Ok(i32::MAX as u32));
        check("0", Err(RankCountError::Zero));
        check("2147483648", Err(RankCountError::TooMany));
        check("99999999999999999999", Err(RankCountError::TooMany));
        for text in ["", "x", "-1", "1.5", "1e3", " 1", "0x10"] {
            check(text, Err(RankCountError::NotANumber));
        }
    }
}
