//! Output that a page shows, compared with that of a run: names of machines and users, ids, numbers, times and sizes differ.

/// Machines and users of the book.
const NAMES: &[&str] = &["laptop", "workstation", "box", "ann", "ada", "root"];
const TIMES: &[&str] = &["ns", "us", "ms", "s", "min", "h", "days"];
const SIZES: &[&str] = &["B", "KiB", "MiB", "GiB"];
/// Letters of an id.
const ID_LEN: usize = 10;

/// Returns true if a line of a run is one that the page shows, but for values.
pub(super) fn is_like(shown: &str, actual: &str) -> bool {
    let (shown, actual) = (words(shown), words(actual));
    shown.len() == actual.len() && shown.iter().zip(&actual).all(|(shown, actual)| is_like_word(shown, actual))
}

fn is_like_word(shown: &str, actual: &str) -> bool {
    let is_id = |word: &str| {
        word.len() == ID_LEN && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let is_shown_id = is_id(shown) && shown.bytes().any(|byte| byte.is_ascii_digit());
    NAMES.contains(&shown) || (is_shown_id && is_id(actual)) || folded(shown) == folded(actual)
}

/// Words of a line, with `<time>` for numbers and their units, and `<ranks>` for one or more ranks.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.replace('"', " \" ").split_whitespace() {
        let unit = word.trim_end_matches([',', ';', ':', '.']);
        let kind = [("<time>", TIMES), ("<size>", SIZES)].into_iter().find(|(_, units)| units.contains(&unit));
        let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_list = unit.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b','));
        match (words.last().map(String::as_str), word) {
            (Some("rank" | "ranks"), _) if is_list => {
                words.pop();
                words.push("<ranks>".to_owned());
                continue;
            }
            (Some("<ranks>"), "are") => {
                words.push("is".to_owned());
                continue;
            }
            _ => {}
        }
        match kind {
            Some((kind, _)) if words.last().is_some_and(is_number) => {
                words.pop();
                if words.last().is_none_or(|last| last != kind) {
                    words.push(kind.to_owned());
                }
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// The word with `0` for each number.
fn folded(word: &str) -> String {
    let mut folded = String::new();
    for letter in word.chars() {
        let is_digit = letter.is_ascii_digit();
        if !(folded.ends_with('0') && (is_digit || letter == '.')) {
            folded.push(if is_digit { '0' } else { letter });
        }
    }
    folded
}

#[test]
fn values_may_differ_and_words_may_not() {
    for (shown, actual, expected) in [
        ("hello from rank 3 of 4 on laptop", "hello from rank 0 of 4 on vm7", true),
        ("hello from rank 3 of 4 on laptop", "hello from rank 0 on vm7", false),
        ("used: 12 min 41 s of time, 2.104 s", "used: 3 ms of time, 4 s", true),
        ("k3jq09zmf2  job.sh  ann  running", "abcdefghij  job.sh  root  running", true),
        ("node0  up  23.5 GiB  10.20.0.1:50052", "node1  up  4 GiB  127.0.0.1:9", true),
        ("node0  up", "node0  away", false),
        ("rank 3 left, while rank 1 is in it", "rank 3 left, while ranks 0-1,3 are in it", true),
    ] {
        assert_eq!(is_like(shown, actual), expected, "{shown}");
    }
}
