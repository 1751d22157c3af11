//! Limits on sizes, and the items above them: `xtask/sizes.txt`, one `SIZE KIND PLACE` on each line.
//!
//! The list only shrinks. An item that is not in it, or is larger than its entry, is a problem. So is an entry that can be lowered or removed;
//! `cargo xtask walls --write` does that.

use std::collections::BTreeMap;
use std::fmt;

/// A measured size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Lines of a file, tests included.
    File,
    /// Lines of a function, from `fn` to its end.
    Function,
    /// Fields of a struct.
    Fields,
    /// Methods of a type in all its `impl` blocks without a trait.
    Methods,
    /// Modules that import each other in a circle. A file and its child modules count separately.
    Circle,
}

impl Kind {
    const ALL: [Self; 5] = [Self::File, Self::Function, Self::Fields, Self::Methods, Self::Circle];

    /// Largest size without an entry.
    pub(crate) fn limit(self) -> usize {
        match self {
            Self::File => 450,
            Self::Function => 60,
            Self::Fields => 15,
            Self::Methods => 35,
            Self::Circle => 0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Function => "function",
            Self::Fields => "fields",
            Self::Methods => "methods",
            Self::Circle => "circle",
        }
    }
}

/// An item above its limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Large {
    pub(crate) kind: Kind,
    /// File, and the name of the item.
    pub(crate) place: String,
    pub(crate) size: usize,
}

impl fmt::Display for Large {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.size, self.kind.name(), self.place)
    }
}

/// The items of the list.
#[derive(Debug, Default)]
pub(crate) struct Sizes(BTreeMap<(Kind, String), usize>);

impl Sizes {
    /// Parses the list.
    ///
    /// # Errors
    /// Returns the first line that is no entry.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let entry = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let size = words.next()?.parse().ok()?;
            let name = words.next()?;
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name)?;
            Some(((kind, words.next()?.to_owned()), size))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| entry(line).ok_or_else(|| line.to_owned())).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the differences between the list and the measured items.
    pub(crate) fn check(&self, measured: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        for ((kind, place), &size) in &measured.0 {
            let (name, limit) = (kind.name(), kind.limit());
            match self.0.get(&(*kind, place.clone())) {
                None => problems.push(format!("{place}: {name} {size}, limit {limit}")),
                Some(&listed) if size > listed => {
                    problems.push(format!("{place}: {name} {size}, {listed} in xtask/sizes.txt, limit {limit}"));
                }
                Some(&listed) if size < listed => {
                    problems.push(format!("{place}: {name} {size}, {listed} in xtask/sizes.txt: lower the entry"));
                }
                Some(_) => {}
            }
        }
        let gone = self.0.keys().filter(|key| !measured.0.contains_key(key));
        problems.extend(gone.map(|(kind, place)| {
            format!("{place}: {} within {}: remove the entry in xtask/sizes.txt", kind.name(), kind.limit())
        }));
        problems
    }

    /// The list with smaller sizes and without unused entries. New and larger items are not added.
    pub(crate) fn lowered(&self, measured: &Self) -> Self {
        let lower = |(key, &listed): (&(Kind, String), &usize)| {
            measured.0.get(key).map(|&size| (key.clone(), size.min(listed)))
        };
        Self(self.0.iter().filter_map(lower).collect())
    }

    /// Text of the list.
    pub(crate) fn render(&self) -> String {
        let mut text =
            "# Items above a limit of `cargo xtask walls`: size, kind, place. The list only shrinks.\n".to_owned();
        for ((kind, place), &size) in &self.0 {
            text.push_str(&format!("{}\n", Large { kind: *kind, place: place.clone(), size }));
        }
        text
    }
}

impl<'a> FromIterator<&'a Large> for Sizes {
    /// Items of one name in one file count as the largest of them.
    fn from_iter<T: IntoIterator<Item = &'a Large>>(items: T) -> Self {
        let mut sizes = BTreeMap::new();
        for item in items {
            let size = sizes.entry((item.kind, item.place.clone())).or_insert(0);
            *size = item.size.max(*size);
        }
        Self(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Sizes {
        Sizes::parse(text).unwrap()
    }

    #[test]
    fn the_list_only_shrinks() {
        let listed = sizes("# Remark.\n500 file a.rs\n70 function a.rs f\n20 fields a.rs A\n40 methods b.rs B\n");
        let measured = sizes("501 file a.rs\n65 function a.rs f\n20 fields a.rs A\n61 function c.rs g\n");
        let expected = [
            "a.rs: file 501, 500 in xtask/sizes.txt, limit 450",
            "a.rs f: function 65, 70 in xtask/sizes.txt: lower the entry",
            "c.rs g: function 61, limit 60",
            "b.rs B: methods within 35: remove the entry in xtask/sizes.txt",
        ];
        assert_eq!(listed.check(&measured), expected);
        let lowered = listed.lowered(&measured).render();
        let entries: Vec<&str> = lowered.lines().skip(1).collect();
        assert_eq!(entries, ["500 file a.rs", "65 function a.rs f", "20 fields a.rs A"]);
        assert_eq!(Sizes::parse("500 files a.rs").unwrap_err(), "500 files a.rs");
    }
}
