//! Values of `--export`: variables of the caller that ranks receive, as with srun(1).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::value::{EnvSetting, EnvSettingError};

/// Value of `--export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// True if every variable is passed on.
    pub all: bool,
    /// Named variables. A variable with a value is set to it; one without a value is passed on.
    pub named: Vec<EnvSetting>,
    /// Files of variables: words with a slash in the name.
    pub files: Vec<PathBuf>,
}

/// Error for an invalid list of variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A variable has no name.
    #[error(transparent)]
    Setting(#[from] EnvSettingError),
    /// The list contains `NONE` and further words.
    #[error("NONE stands alone; names without it are all that is passed on")]
    NoneAndMore,
}

impl Export {
    pub(super) fn parse(text: OsString) -> Result<Self, ExportError> {
        let mut export = Self { all: false, named: Vec::new(), files: Vec::new() };
        let mut is_none = false;
        for word in text.as_bytes().split(|&byte| byte == b',') {
            match word {
                b"ALL" => export.all = true,
                b"NONE" | b"NIL" => is_none = true,
                word if word.split(|&byte| byte == b'=').next().is_some_and(|name| name.contains(&b'/')) => {
                    export.files.push(OsString::from_vec(word.to_vec()).into());
                }
                word => export.named.push(EnvSetting::parse(OsString::from_vec(word.to_vec()))?),
            }
        }
        let has_more = export.all || !export.named.is_empty() || !export.files.is_empty();
        if is_none && has_more { Err(ExportError::NoneAndMore) } else { Ok(export) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_srun_is_read() {
        let check = |text: &str, all: bool, named: &[(&str, Option<&str>)]| {
            let named =
                named.iter().map(|(name, value)| EnvSetting { name: name.into(), value: value.map(OsString::from) });
            let files = Vec::new();
            assert_eq!(Export::parse(text.into()), Ok(Export { all, named: named.collect(), files }), "{text}");
        };
        check("ALL", true, &[]);
        check("NONE", false, &[]);
        check("A", false, &[("A", None)]);
        check("ALL,A=1,B", true, &[("A", Some("1")), ("B", None)]);
        check("A=x=y,ALL", true, &[("A", Some("x=y"))]);
        let export = Export::parse("ALL,./site.env,A=/b".into()).unwrap();
        assert_eq!((export.all, export.named.len(), export.files), (true, 1, vec![PathBuf::from("./site.env")]));
        assert_eq!(Export::parse("NONE,A".into()), Err(ExportError::NoneAndMore));
        assert_eq!(Export::parse("A,,B".into()), Err(EnvSettingError::NoName.into()));
        assert_eq!(Export::parse("".into()), Err(EnvSettingError::NoName.into()));
    }
}
