//! Entry point of the fuzz target in `fuzz/`, as a plain function. It accepts any bytes, and panics if a guarantee is broken.

use std::sync::atomic::AtomicU64;

use crate::layout::{KEY_MAX, KeyWords, TEXT_MAX, VALUE_MAX, WORD, word_of};
use crate::reader::{Lookup, View, check};
use crate::words::Words;

/// Keys in the seeds.
const KEYS: [&[u8]; 3] = [b"k", b"key-0", b"pmi-exchange-0-1"];

/// Memory with any content is read within its bounds, in bounded time and with bounded memory, with or without a valid header.
pub fn memory(data: &[u8]) {
    let words: Vec<AtomicU64> = data.chunks(WORD).map(|chunk| AtomicU64::new(word_of(chunk))).collect();
    let view = View(Words::new(&words));
    let _ = check(view);
    let own = &data[..data.len().min(KEY_MAX)];
    for key in KEYS.into_iter().chain([own]).filter_map(KeyWords::new) {
        if let Ok(Lookup::Found(value)) = view.get(&key) {
            assert!(value.len() <= VALUE_MAX, "a value of {} bytes", value.len());
        }
    }
    for number in [0, 1, 2, u32::MAX] {
        let texts = [
            view.rank(number).and_then(|rank| rank.cpus),
            view.node(number).map(|node| node.name),
            view.node(number).and_then(|node| node.address),
        ];
        assert!(texts.iter().flatten().all(|text| text.len() <= TEXT_MAX));
    }
    let value = view.attribute("universeSize");
    assert!(value.is_none_or(|value| value.len() <= TEXT_MAX));
}
