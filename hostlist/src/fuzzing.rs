//! Entry point of the fuzz target in `fuzz/`, as a plain function: it takes any bytes, and panics when a promise is broken.

use crate::{NAME_MAX, expand, expand_at_most, fold};

/// Most names that the lists under test may stand for.
const MOST: usize = 4096;

/// A list is refused, or stands for names within the bounds, which fold to a list that stands for the same.
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
