//! Entry point of the fuzz target in `fuzz/`, as a plain function: it accepts any bytes, and panics when a guarantee is broken.

use crate::{NAME_MAX, expand, expand_at_most, fold};

/// Maximum number of names of a list under test.
const MOST: usize = 4096;

/// Each list is refused, or expands to names within the limits, which fold to a list of the same names.
pub fn hostlist(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(names) = expand_at_most(text, MOST) else { return };
    assert!(names.len() <= MOST, "{} names", names.len());
    for name in &names {
        assert!(!name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_whitespace), "{name:?}");
    }
    let folded = fold(&names);
    assert_eq!(expand(&folded).as_ref(), Ok(&names), "{folded:?}");
}
