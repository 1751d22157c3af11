//! Environment of ranks: one base that all ranks share, and the few variables that differ between ranks.
//!
//! The strings of the base are made once per launch. Each rank adds only its own strings and one array of pointers.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;

use crate::exec_string::{StringError, exec_string};

/// Variables that all ranks of a launch share. Clones share the strings.
#[derive(Clone, Debug)]
pub struct Environment(Arc<Variables>);

/// Complete environment of one rank.
#[derive(Clone, Debug)]
pub struct RankEnvironment {
    base: Arc<Variables>,
    own: Variables,
}

/// Error for a variable that cannot be set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// `NAME=value` is not valid for exec.
    #[error("variable {} {error}", name.display())]
    Variable {
        /// The variable's name.
        name: OsString,
        /// Reason, for name and value together.
        error: StringError,
    },
    /// The name is empty, or has a `=` after its first byte, which would end the name.
    #[error("{name:?} cannot be the name of a variable: it is empty or holds `=`")]
    Name {
        /// The name.
        name: OsString,
    },
}

impl Environment {
    /// Takes the variables in order; a later variable replaces an earlier one of the same name. Values may have all bytes
    /// but NUL.
    ///
    /// # Errors
    /// Fails for a name that is empty or has a `=` after its first byte. Also fails for a NUL byte, and for a `NAME=value`
    /// of more than [`crate::MAX_STRING`] bytes.
    pub fn new<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self, EnvironmentError>
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        Variables::new(variables).map(|variables| Self(Arc::new(variables)))
    }

    /// Environment of one rank: the base, with variables of the same name replaced by `own`.
    ///
    /// # Errors
    /// See [`Environment::new`].
    pub fn for_rank<N, V>(&self, own: impl IntoIterator<Item = (N, V)>) -> Result<RankEnvironment, EnvironmentError>
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        Ok(RankEnvironment { base: Arc::clone(&self.0), own: Variables::new(own)? })
    }
}

impl RankEnvironment {
    /// Names and values; each name occurs once.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let is_shared = |string: &&CString| !self.own.positions.contains_key(name_of(string));
        self.base.strings.iter().filter(is_shared).chain(&self.own.strings).map(|string| {
            let (name, value) = string.to_bytes().split_at(name_of(string).len());
            (OsStr::from_bytes(name), OsStr::from_bytes(&value[1..]))
        })
    }

    /// The null-terminated array for `execve`; it is valid as long as `self`.
    pub(crate) fn pointers(&self) -> Vec<*const c_char> {
        let mut pointers: Vec<_> = self.base.strings.iter().map(|string| string.as_ptr()).collect();
        for string in &self.own.strings {
            match self.base.positions.get(name_of(string)) {
                Some(&replaced) => pointers[replaced] = string.as_ptr(),
                None => pointers.push(string.as_ptr()),
            }
        }
        pointers.push(ptr::null());
        pointers
    }
}

/// Strings `NAME=value`; each name occurs once.
#[derive(Clone, Default, Debug)]
struct Variables {
    strings: Vec<CString>,
    /// Index in `strings` of each name.
    positions: HashMap<Box<[u8]>, usize>,
}

impl Variables {
    fn new<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self, EnvironmentError>
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let mut all = Self::default();
        for (name, value) in variables {
            all.set(name.as_ref(), value.as_ref())?;
        }
        Ok(all)
    }

    fn set(&mut self, name: &OsStr, value: &OsStr) -> Result<(), EnvironmentError> {
        // A leading `=` is legal: some programs put such names into the inherited environment.
        if name.is_empty() || name.as_bytes()[1..].contains(&b'=') {
            return Err(EnvironmentError::Name { name: name.to_owned() });
        }
        let string = exec_string([name.as_bytes(), b"=", value.as_bytes()].concat())
            .map_err(|error| EnvironmentError::Variable { name: name.to_owned(), error })?;
        match self.positions.get(name.as_bytes()) {
            Some(&position) => self.strings[position] = string,
            None => {
                self.positions.insert(name.as_bytes().into(), self.strings.len());
                self.strings.push(string);
            }
        }
        Ok(())
    }
}

/// The part before the `=`; never empty.
fn name_of(string: &CStr) -> &[u8] {
    let bytes = string.to_bytes();
    let equals = bytes.iter().skip(1).position(|&byte| byte == b'=');
    &bytes[..equals.map_or(bytes.len(), |position| position + 1)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn variables() -> impl Strategy<Value = Vec<(String, String)>> {
        prop::collection::vec(("=?[AB]{1,2}", "[a=]{0,3}"), 0..8)
    }

    /// Environment strings that the program receives.
    fn strings(rank: &RankEnvironment) -> Vec<&CStr> {
        let known = || rank.base.strings.iter().chain(&rank.own.strings);
        let pointers = rank.pointers();
        let (end, strings) = pointers.split_last().unwrap();
        assert!(end.is_null(), "the list has no end");
        let find = |pointer: &*const c_char| known().find(|string| string.as_ptr() == *pointer).unwrap().as_c_str();
        strings.iter().map(find).collect()
    }

    proptest! {
        #[test]
        fn each_name_is_there_once_with_its_last_value_and_the_ranks_own_before_the_shared(
            base in variables(), own in variables(),
        ) {
            let rank = Environment::new(base.clone()).unwrap().for_rank(own.clone()).unwrap();
            let model: BTreeMap<_, _> = base.into_iter().chain(own).collect();
            let mut expected: Vec<_> = model.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let mut found: Vec<_> = strings(&rank).into_iter().map(|string| string.to_str().unwrap().to_owned()).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            let read: BTreeMap<_, _> =
                rank.iter().map(|(name, value)| (name.to_str().unwrap().to_owned(), value.to_str().unwrap().to_owned())).collect();
            prop_assert_eq!((read, rank.iter().count()), (model.clone(), model.len()));
        }
    }

    #[test]
    fn own_variables_replace_the_base_without_copying_it() {
        let base = Environment::new([("A", "1"), ("B", "2"), ("A", "3")]).unwrap();
        let rank = base.for_rank([("B", "x=y"), ("C", "")]).unwrap();
        let pointers = rank.pointers();
        let expected = [base.0.strings[0].as_ptr(), rank.own.strings[0].as_ptr(), rank.own.strings[1].as_ptr()];
        assert_eq!(pointers, [&expected[..], &[ptr::null()]].concat());
        assert_eq!(base.0.strings, [c"A=3".to_owned(), c"B=2".to_owned()]);
        assert_eq!(rank.own.strings, [c"B=x=y".to_owned(), c"C=".to_owned()]);
    }

    #[test]
    fn what_no_program_can_get_is_refused_by_name() {
        let check = |name: &str, value: &str, expected: &str| {
            let error = Environment::new([(name, value)]).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check("BIG", &"x".repeat(131_068), "variable BIG has 131072 bytes; the limit is 131071");
        check("CUT", "a\0", "variable CUT holds a NUL byte at offset 5");
        check("", "a", r#""" cannot be the name of a variable: it is empty or holds `=`"#);
        check("A=B", "a", r#""A=B" cannot be the name of a variable: it is empty or holds `=`"#);
        assert!(Environment::new([("BIG", "x".repeat(131_067))]).is_ok());
        assert!(Environment::new([("=C:", "x")]).is_ok());
    }
}
