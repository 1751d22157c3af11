//! Versions of agents that work with this API server: the versions of its own series. The first two numbers of a version identify the
//! series (0.1), or the first number alone from 1 on. Within a series the protocol is only extended.

/// The version of this API server.
pub(crate) const OURS: &str = env!("CARGO_PKG_VERSION");

/// Compatibility of another version with ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The same version.
    Same,
    /// Another version that works, or a text without a known series.
    Other,
    /// A version of another series.
    Never,
}

/// Returns the compatibility of `theirs` with [`OURS`].
pub(crate) fn fit(theirs: &str) -> Fit {
    match (series_of(theirs), series_of(OURS)) {
        _ if theirs == OURS => Fit::Same,
        (Some(theirs), Some(ours)) if theirs != ours => Fit::Never,
        _ => Fit::Other,
    }
}

/// The compatible versions in the usual notation: `0.1.x`.
pub(crate) fn series() -> String {
    match series_of(OURS) {
        Some((0, minor)) => format!("0.{minor}.x"),
        Some((major, _)) => format!("{major}.x"),
        None => OURS.to_owned(),
    }
}

/// Numbers that compatible versions have in common; `None` for a text that is no version.
fn series_of(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse().ok());
    match (numbers.next()??, numbers.next()??) {
        (0, minor) => Some((0, minor)),
        (major, _) => Some((major, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_series_work_together() {
        let check = |version, expected| assert_eq!(series_of(version), expected, "{version}");
        check("0.1.0", Some((0, 1)));
        check("0.1.7-rc.1", Some((0, 1)));
        check("0.2", Some((0, 2)));
        check("3.4.5", Some((3, 0)));
        check("3", None);
        check("", None);
        check("soon", None);
        assert_eq!((fit(OURS), fit(""), fit("4000000000.0.0")), (Fit::Same, Fit::Other, Fit::Never));
        assert_eq!(fit(&format!("{OURS}-local")), Fit::Other);
    }
}
