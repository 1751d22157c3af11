//! Promises of the key-value space, case by case; [`super::model`] tests random sequences.

use super::*;

fn fence_of(contributions: impl IntoIterator<Item = Contribution>) -> Merged {
    contributions.into_iter().flat_map(|contribution| contribution.segments).collect::<Vec<_>>().into()
}

fn brought(pairs: &[(&str, &str)]) -> Merged {
    vec![pairs.iter().copied().collect()].into()
}

fn value<'a>(kvs: &'a Kvs, key: &str) -> Option<&'a str> {
    kvs.get(key.as_bytes()).map(|value| std::str::from_utf8(value).unwrap())
}

#[test]
fn a_put_is_read_at_once_and_through_every_step_of_its_fence() {
    let mut kvs = Kvs::new();
    kvs.put(b"k", b"1");
    assert_eq!(value(&kvs, "k"), Some("1"), "staged");
    let contribution = kvs.contribute();
    assert_eq!(value(&kvs, "k"), Some("1"), "in flight");
    kvs.commit(fence_of([contribution]));
    assert_eq!(value(&kvs, "k"), Some("1"), "merged");
    assert!(kvs.contribute().segments.is_empty(), "a pair was contributed twice");
}

#[test]
fn a_fence_without_puts_brings_no_segment() {
    let mut kvs = Kvs::new();
    assert!(kvs.contribute().segments.is_empty());
    assert!(kvs.share().segments.is_empty());
}

#[test]
fn after_a_commit_its_last_value_is_read_on_every_node() {
    let (mut first, mut second) = (Kvs::new(), Kvs::new());
    first.put(b"k", b"of the first node");
    second.put(b"k", b"of the second node");
    let merged = fence_of([first.contribute(), second.contribute()]);
    first.commit(merged.clone());
    second.commit(merged);
    assert_eq!(value(&first, "k"), Some("of the second node"));
    assert_eq!(value(&second, "k"), Some("of the second node"));
}

#[test]
fn a_put_during_a_fence_is_newer_than_what_the_fence_brings() {
    let mut kvs = Kvs::new();
    kvs.put(b"k", b"before");
    let before = kvs.contribute();
    kvs.put(b"k", b"meanwhile");
    kvs.commit(fence_of([before, brought(&[("k", "foreign")]).segments.into()]));
    assert_eq!(value(&kvs, "k"), Some("meanwhile"));
    let meanwhile = kvs.contribute();
    kvs.commit(fence_of([meanwhile]));
    assert_eq!(value(&kvs, "k"), Some("meanwhile"));
}

#[test]
fn shared_pairs_are_contributed_again_and_hide_what_their_group_brings() {
    let (mut kvs, mut other) = (Kvs::new(), Kvs::new());
    kvs.put(b"k", b"own");
    other.put(b"k", b"foreign");
    other.put(b"l", b"new");
    let shared = kvs.share();
    let brought = kvs.absorb(&fence_of([shared.clone(), other.share()])).unwrap();
    let keys: Vec<_> = brought.iter().flat_map(Segment::pairs).map(|(key, _)| key).collect();
    assert_eq!(keys, [&b"k"[..], b"k", b"l"], "labels are no pairs");
    assert_eq!((value(&kvs, "k"), value(&kvs, "l")), (Some("own"), Some("new")));
    assert_eq!(kvs.contribute().segments, shared.segments[1..]);
}

#[test]
fn a_groups_fence_that_comes_late_brings_nothing_old_back() {
    let (mut writer, mut reader) = (Kvs::new(), Kvs::new());
    writer.put(b"k", b"1");
    let first = fence_of([writer.share()]);
    writer.put(b"k", b"2");
    let second = fence_of([writer.share()]);
    reader.absorb(&second).unwrap();
    reader.absorb(&first).unwrap();
    assert_eq!(value(&reader, "k"), Some("2"), "two groups");
    writer.put(b"k", b"3");
    let third = fence_of([writer.share()]);
    let world = fence_of([writer.contribute(), reader.contribute()]);
    writer.commit(world.clone());
    writer.put(b"k", b"4");
    let fourth = fence_of([writer.share()]);
    reader.absorb(&fourth).unwrap();
    reader.commit(world);
    assert_eq!(value(&reader, "k"), Some("4"), "a group's fence that began after the world's");
    reader.absorb(&third).unwrap();
    assert_eq!(value(&reader, "k"), Some("4"), "and one that began before it");
}

#[test]
fn who_has_seen_a_pair_puts_a_newer_one_though_others_bring_the_old_one_again() {
    let (mut first, mut second, mut third) = (Kvs::new(), Kvs::new(), Kvs::new());
    first.put(b"k", b"old");
    second.absorb(&fence_of([first.share()])).unwrap();
    second.put(b"k", b"new");
    third.absorb(&fence_of([second.share()])).unwrap();
    // it is still staged there, and part of every contribution
    third.absorb(&fence_of([first.share()])).unwrap();
    assert_eq!(value(&third, "k"), Some("new"));
}

#[test]
fn a_pair_that_overtook_ones_own_is_read_after_the_fence_that_brings_that() {
    let (mut slow, mut fast) = (Kvs::new(), Kvs::new());
    slow.put(b"k", b"in the fence");
    let world = fence_of([slow.contribute(), fast.contribute()]);
    fast.commit(world.clone());
    fast.put(b"k", b"after the fence");
    slow.absorb(&fence_of([fast.share()])).unwrap();
    assert_eq!(value(&slow, "k"), Some("in the fence"));
    slow.commit(world);
    assert_eq!(value(&slow, "k"), Some("after the fence"));
}

#[test]
fn what_tells_no_age_is_refused() {
    let mut kvs = Kvs::new();
    assert_eq!(kvs.absorb(&brought(&[("k", "1")])), Err(Unlabelled));
    assert_eq!(value(&kvs, "k"), None);
}

#[test]
fn a_key_keeps_its_index_and_occurs_once() {
    let mut kvs = Kvs::new();
    kvs.commit(brought(&[("a", "1"), ("b", "2"), ("a", "3")]));
    kvs.put(b"c", b"4");
    kvs.put(b"b", b"5");
    let all: Vec<_> = (0..kvs.len()).map(|index| kvs.nth(index).unwrap()).collect();
    assert_eq!(all, [(&b"a"[..], &b"3"[..]), (b"b", b"5"), (b"c", b"4")]);
    assert_eq!(kvs.nth(3), None);
}

#[test]
fn an_empty_key_is_never_there() {
    let mut kvs = Kvs::new();
    kvs.put(b"", b"value");
    assert_eq!((kvs.get(b""), kvs.len()), (None, 0));
}

#[test]
fn a_small_job_takes_little_memory() {
    let mut kvs = Kvs::new();
    assert!(kvs.memory() < 512, "an empty space takes {} bytes", kvs.memory());
    for key in [b"a", b"b", b"c", b"d"] {
        kvs.put(key, &[b'v'; 80]);
    }
    assert!(kvs.memory() < 1024, "four pairs take {} bytes", kvs.memory());
}

#[test]
fn many_pairs_take_a_quarter_more_than_their_text() {
    const NODES: usize = 20;
    const PAIRS: usize = 1000;
    let pair = |node, rank| (format!("key-{node:06}-{rank:09}"), [b'v'; 71]);
    let segments: Vec<Segment> = (0..NODES).map(|node| (0..PAIRS).map(|rank| pair(node, rank)).collect()).collect();
    let mut kvs = Kvs::new();
    for round in 1..=5 {
        kvs.commit(segments.clone().into());
        let text = NODES * PAIRS * (20 + 71);
        assert!(kvs.memory() * 4 <= text * 5, "{} bytes for {text} in round {round}", kvs.memory());
    }
    assert_eq!(kvs.len(), NODES * PAIRS);
}

#[test]
fn putting_the_same_keys_for_ever_takes_no_more_memory() {
    let mut kvs = Kvs::new();
    for round in 0..2000_u32 {
        for key in 0..10_u8 {
            kvs.put(&[b'k', key], &round.to_be_bytes().repeat(10));
        }
        // A separate key now and then, so that no segment becomes unreadable.
        kvs.put(&(round / 50).to_be_bytes(), b"kept");
        match round % 5 {
            0 => drop(kvs.share()),
            1 if round > 1000 => {
                let contribution = kvs.contribute();
                kvs.commit(fence_of([contribution]));
            }
            _ => {}
        }
        assert!(kvs.memory() < 16 * 1024, "{} bytes in round {round}", kvs.memory());
    }
    assert_eq!(kvs.len(), 10 + 40);
    assert_eq!(kvs.get(&[b'k', 9]), Some(&*1999_u32.to_be_bytes().repeat(10)));
}
