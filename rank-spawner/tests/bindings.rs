//! Tests all options of a binding on generated machines against a specification. In place of the pools of `plan`, it has a model that
//! sorts places, and checks of each rank's CPUs.

mod faked;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use lattice_inventory::UsableCores;
use proptest::prelude::*;
use proptest::sample::select;
use rank_spawner::{BindError, CpuBind, Object, plan};

use self::faked::{Cpu, Machine, machines};

type Mask = BTreeSet<u16>;

/// Options of a binding to objects, as in its text.
#[derive(Clone, Debug)]
struct Words {
    object: Object,
    share: Option<(&'static str, usize)>,
    /// Objects that ranks are dealt out over, and the number of ranks at a time.
    over: Vec<(Object, usize)>,
    /// True to deal out the CPUs of each rank instead of ranks.
    each: bool,
    threads: Option<usize>,
    cores: Option<usize>,
}

impl Words {
    fn text(&self) -> String {
        let mut text = self.object.word().to_owned();
        if let Some((unit, number)) = self.share {
            write!(text, ":{unit}={number}").unwrap();
        }
        for (over, at_once) in &self.over {
            write!(text, ":{}over={over}", if self.each { "each-" } else { "" }).unwrap();
            if *at_once > 1 {
                write!(text, "*{at_once}").unwrap();
            }
        }
        for (name, number) in [("threads-per-core", self.threads), ("cores-per-socket", self.cores)] {
            if let Some(number) = number {
                write!(text, ":{name}={number}").unwrap();
            }
        }
        text
    }

    /// Usable CPUs after these options have been applied.
    fn part(&self, machine: &Machine) -> Vec<Cpu> {
        let (mut cores, mut threads) = (BTreeMap::<u16, Vec<u16>>::new(), BTreeMap::<u16, usize>::new());
        let mut cpus = machine.usable();
        cpus.retain(|cpu| {
            let cores = cores.entry(cpu.package).or_default();
            if !cores.contains(&cpu.core) {
                cores.push(cpu.core);
            }
            let thread = threads.entry(cpu.core).or_default();
            *thread += 1;
            self.cores.is_none_or(|most| cores.len() <= most) && self.threads.is_none_or(|most| *thread <= most)
        });
        cpus
    }
}

fn objects() -> impl Strategy<Value = Object> {
    select(vec![Object::Thread, Object::Core, Object::L3Cache, Object::Numa, Object::Socket])
}

/// Objects that ranks are dealt out over: none, one or two kinds, the larger ones first.
fn over() -> impl Strategy<Value = Vec<(Object, usize)>> {
    let one = (objects().prop_filter("threads are no larger objects", |over| *over != Object::Thread), 1..3_usize);
    proptest::collection::vec(one, 0..3).prop_map(|mut over| {
        over.sort_by_key(|(object, _)| std::cmp::Reverse(*object));
        over.dedup_by_key(|(object, _)| *object);
        over
    })
}

fn words() -> impl Strategy<Value = Words> {
    let share = proptest::option::of((select(vec!["cpus", "cores"]), 1..7_usize));
    let part = (proptest::option::weighted(0.2, 1..3_usize), proptest::option::weighted(0.2, 1..4_usize));
    (objects(), share, over(), any::<bool>(), part).prop_map(|(object, share, mut over, each, (threads, cores))| {
        let each = each && share.is_some() && !over.is_empty();
        if each {
            over.iter_mut().for_each(|(_, at_once)| *at_once = 1);
        }
        Words { object, share, over, each, threads, cores }
    })
}

fn masks(usable: &UsableCores, bind: &str, ranks: u32) -> Result<Vec<Mask>, BindError> {
    let bind: CpuBind = bind.parse().unwrap_or_else(|error| panic!("{bind}: {error}"));
    let planned = plan(usable, &bind, ranks)?;
    Ok(planned.into_iter().map(|cpus| cpus.expect("each rank is bound").iter().collect()).collect())
}

/// CPUs of each object of a kind, in the order of the machine.
fn groups(cpus: &[Cpu], object: Object) -> Vec<Vec<Cpu>> {
    let mut groups: Vec<Vec<Cpu>> = Vec::new();
    for cpu in cpus {
        match groups.iter_mut().find(|group| group[0].of(object) == cpu.of(object)) {
            Some(group) => group.push(*cpu),
            None => groups.push(vec![*cpu]),
        }
    }
    groups
}

/// Places in the order in which they are dealt out: the first of each object, then the second of each.
fn in_turn(places: Vec<Vec<Cpu>>, over: &[(Object, usize)]) -> Vec<Vec<Cpu>> {
    let Some(((object, at_once), smaller)) = over.split_first() else { return places };
    let mut objects: Vec<u16> = Vec::new();
    for place in &places {
        if !objects.contains(&place[0].of(*object)) {
            objects.push(place[0].of(*object));
        }
    }
    let mut ordered = Vec::new();
    for (turn, number) in objects.into_iter().enumerate() {
        let here = places.iter().filter(|place| place[0].of(*object) == number).cloned().collect();
        let here = in_turn(here, smaller).into_iter().enumerate();
        ordered.extend(here.map(|(position, place)| ((position / at_once, turn), place)));
    }
    ordered.sort_by_key(|(key, _)| *key);
    ordered.into_iter().map(|(_, place)| place).collect()
}

fn mask(cpus: &[Cpu]) -> Mask {
    cpus.iter().map(|cpu| cpu.number).collect()
}

/// CPUs of all objects that have a CPU of the mask.
fn widened(cpus: &[Cpu], narrow: &Mask, object: Object) -> Mask {
    let is_touched = |group: &Vec<Cpu>| group.iter().any(|cpu| narrow.contains(&cpu.number));
    groups(cpus, object).into_iter().filter(is_touched).flat_map(|group| mask(&group)).collect()
}

/// Masks of one round of ranks without shares.
fn one_round(cpus: &[Cpu], words: &Words, ranks: usize) -> Vec<Mask> {
    if let [(over, at_once @ 2..), ..] = words.over[..]
        && over <= words.object
    {
        let objects = groups(cpus, over).into_iter();
        return objects
            .flat_map(|group| vec![widened(cpus, &mask(&group), words.object); at_once.min(ranks)])
            .collect();
    }
    in_turn(groups(cpus, words.object), &words.over).iter().map(|place| mask(place)).collect()
}

/// Free and taken units of a node, rank after rank.
struct Shares<'a> {
    words: &'a Words,
    /// Threads, or cores if shares are whole cores.
    units: Vec<Vec<Cpu>>,
    free: Vec<bool>,
}

impl<'a> Shares<'a> {
    fn of(cpus: &[Cpu], words: &'a Words) -> Self {
        let is_of_threads = words.object == Object::Thread && words.share.is_some_and(|(unit, _)| unit == "cpus");
        let units = groups(cpus, if is_of_threads { Object::Thread } else { Object::Core });
        Self { words, free: vec![true; units.len()], units }
    }

    fn worth(&self, unit: &[Cpu]) -> usize {
        if self.words.share.is_some_and(|(unit, _)| unit == "cpus") { unit.len() } else { 1 }
    }

    /// Worth of the free units in an object, or in the node.
    fn free_in(&self, object: Option<(Object, u16)>) -> usize {
        let is_in = |unit: &[Cpu]| object.is_none_or(|(object, number)| unit[0].of(object) == number);
        let free = self.units.iter().zip(&self.free).filter(|(unit, free)| **free && is_in(unit));
        free.map(|(unit, _)| self.worth(unit)).sum()
    }

    fn objects(&self, over: Object) -> BTreeSet<u16> {
        self.units.iter().map(|unit| unit[0].of(over)).collect()
    }

    /// Takes the CPUs of a rank; `before` has the CPUs of the previous rank.
    fn take(&mut self, taken: &Mask, before: Option<&Mask>) -> Result<(), TestCaseError> {
        let (_, wanted) = self.words.share.expect("each rank has a share");
        let room: BTreeMap<u16, usize> = match self.words.over.first() {
            Some(&(over, _)) => self.objects(over).into_iter().map(|n| (n, self.free_in(Some((over, n))))).collect(),
            None => BTreeMap::new(),
        };
        let is_taken = |unit: &[Cpu]| unit.iter().all(|cpu| taken.contains(&cpu.number));
        let numbers: Vec<usize> = (0..self.units.len()).filter(|&unit| is_taken(&self.units[unit])).collect();
        prop_assert_eq!(&numbers.iter().flat_map(|&unit| mask(&self.units[unit])).collect::<Mask>(), taken);
        prop_assert!(numbers.iter().all(|&unit| self.free[unit]), "{taken:?} is not free any more");
        let worths: Vec<usize> = numbers.iter().map(|&unit| self.worth(&self.units[unit])).collect();
        let sum: usize = worths.iter().sum();
        prop_assert!(sum >= wanted && worths.iter().any(|worth| sum - worth < wanted), "{taken:?} is not {wanted}");
        if self.words.over.is_empty() {
            let first: Vec<usize> = (0..self.units.len()).filter(|&unit| self.free[unit]).take(numbers.len()).collect();
            prop_assert_eq!(&numbers, &first);
        }
        for &unit in &numbers {
            self.free[unit] = false;
        }
        let Some(&(over, at_once)) = self.words.over.first() else { return Ok(()) };
        let of = |mask: &Mask| -> BTreeMap<u16, usize> {
            let mut counts = BTreeMap::new();
            for unit in self.units.iter().filter(|unit| unit.iter().all(|cpu| mask.contains(&cpu.number))) {
                *counts.entry(unit[0].of(over)).or_default() += 1;
            }
            counts
        };
        let counts = of(taken);
        if self.words.each {
            for number in self.objects(over) {
                let (has, most) = (counts.get(&number).unwrap_or(&0), counts.values().max().unwrap_or(&0));
                prop_assert!(most - has <= 1 || self.free_in(Some((over, number))) == 0, "{counts:?} of {over}");
            }
            return Ok(());
        }
        prop_assert!(counts.len() == 1 || room.values().all(|room| *room < wanted), "{counts:?} though {room:?}");
        if let (Some(before), 1, 1) = (before.map(of), at_once, counts.len()) {
            let other_has_room = room.iter().any(|(n, room)| *room >= wanted && !before.contains_key(n));
            let stays = counts.keys().all(|number| before.contains_key(number));
            prop_assert!(before.len() > 1 || !other_has_room || !stays, "{before:?}, then {counts:?}");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_machine_is_read_as_it_is(machine in machines()) {
        prop_assert_eq!(machine.read(), machine.usable_cores());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_text_is_read_as_it_is_written(words in words()) {
        let bind: CpuBind = words.text().parse().unwrap();
        prop_assert_eq!(bind.to_string(), words.text());
    }

    #[test]
    fn objects_are_given_out_in_turn(machine in machines(), words in words(), ranks in 1..40_u32) {
        let (words, usable) = (Words { share: None, each: false, ..words }, machine.usable_cores());
        let cpus = words.part(&machine);
        let round = one_round(&cpus, &words, ranks as usize);
        match masks(&usable, &words.text(), ranks) {
            Ok(masks) => {
                let expected: Vec<Mask> = round.iter().cycle().take(ranks as usize).cloned().collect();
                prop_assert_eq!(masks, expected, "{}", words.text());
            }
            Err(error) => prop_assert!(round.is_empty(), "{error}"),
        }
    }

    #[test]
    fn a_share_is_of_one_rank_and_lies_together(machine in machines(), words in words(), ranks in 1..20_u32) {
        let (words, usable) = (Words { share: words.share.or(Some(("cpus", 3))), ..words }, machine.usable_cores());
        let (cpus, text) = (words.part(&machine), words.text());
        // With a larger object, the rank gets all objects that contain its cores.
        let narrow = Words { object: words.object.min(Object::Core), ..words.clone() };
        let mut shares = Shares::of(&cpus, &narrow);
        let (planned, room) = match masks(&usable, &narrow.text(), ranks) {
            Ok(masks) => (masks, None),
            Err(BindError::TooFew { room, .. }) => (masks(&usable, &narrow.text(), room).unwrap(), Some(room)),
            Err(error) => {
                prop_assert!(cpus.is_empty(), "{error}");
                return Ok(());
            }
        };
        for (number, taken) in planned.iter().enumerate() {
            shares.take(taken, number.checked_sub(1).map(|before| &planned[before]))
                .map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        }
        let expected: Vec<Mask> = match words.object {
            Object::Thread | Object::Core => planned,
            larger => planned.iter().map(|narrow| widened(&cpus, narrow, larger)).collect(),
        };
        let shared = masks(&usable, &format!("{text}:overcommit"), ranks);
        match room {
            None => prop_assert_eq!(&masks(&usable, &text, ranks), &Ok(expected.clone()), "{}", text),
            Some(room) => prop_assert!(shares.free_in(None) < words.share.unwrap().1, "{text}: there is room beside {room}"),
        }
        match room {
            Some(0) => prop_assert!(shared.is_err(), "{text}"),
            _ => prop_assert_eq!(shared.unwrap(), expected.iter().cycle().take(ranks as usize).cloned().collect::<Vec<_>>()),
        }
    }

    #[test]
    fn a_numbering_gives_the_same_places_to_others(
        machine in machines(), words in words(), over in objects(), ranks in 1..20_u32,
    ) {
        let usable = machine.usable_cores();
        let Ok(mut dealt) = masks(&usable, &words.text(), ranks) else { return Ok(()) };
        let (cpus, text) = (words.part(&machine), words.text());
        let place = |mask: &Mask| cpus.iter().position(|cpu| Some(&cpu.number) == mask.first()).unwrap();
        // The lowest CPU of a place is not its first one if the second threads are numbered after all cores.
        let core = |mask: &Mask| (groups(&cpus, Object::Core).iter().position(|core| core.contains(&cpus[place(mask)])), mask.first().copied());
        let in_order = masks(&usable, &format!("{text}:in-order"), ranks).unwrap();
        let in_turn = masks(&usable, &format!("{text}:numbered-over={over}"), ranks).unwrap();
        prop_assert!(in_order.is_sorted_by_key(core), "{text}: {in_order:?}");
        // Threads are numbered over their cores.
        let over = over.max(Object::Core);
        let object = |mask: &Mask| cpus[place(mask)].of(over);
        let turns: Vec<usize> = in_turn.iter().enumerate()
            .map(|(n, mask)| in_turn[..n].iter().filter(|before| object(before) == object(mask)).count()).collect();
        prop_assert!(turns.is_sorted(), "{text}: {turns:?}");
        for mut other in [in_order, in_turn] {
            other.sort();
            dealt.sort();
            prop_assert_eq!(&other, &dealt, "{}", text);
        }
    }

    #[test]
    fn ranks_are_bound_or_none_is(machine in machines(), words in words(), ranks in 1..40_u32) {
        let usable = machine.usable_cores();
        let bind: CpuBind = format!("{}:or-none", words.text()).parse().unwrap();
        let planned = plan(&usable, &bind, ranks).unwrap();
        let cpus = words.part(&machine);
        let smallest = if words.object == Object::Thread { cpus.len() } else { groups(&cpus, Object::Core).len() };
        match masks(&usable, &words.text(), ranks) {
            Ok(masks) if words.share.is_some() || smallest >= ranks as usize => {
                prop_assert_eq!(planned, masks.into_iter().map(|mask| Some(mask.into_iter().collect())).collect::<Vec<_>>());
            }
            _ => prop_assert!(planned.iter().all(Option::is_none), "{}", bind),
        }
    }

    #[test]
    fn a_place_that_is_named_is_that_of_its_local_rank(
        machine in machines(), entries in proptest::collection::vec(0..6_u16, 1..4), ranks in 1..9_u32,
    ) {
        let (usable, cpus) = (machine.usable_cores(), machine.usable());
        let mut numbers: Vec<u16> = cpus.iter().map(|cpu| cpu.number).collect();
        numbers.sort_unstable();
        let cores = groups(&cpus, Object::Core);
        let numa = |number: u16| mask(&cpus.iter().filter(|cpu| cpu.numa == number).copied().collect::<Vec<_>>());
        let list = entries.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let core = |number: u16| cores.get(usize::from(number)).map(|core| mask(core)).unwrap_or_default();
        for (bind, places) in [
            ("rank".to_owned(), numbers.iter().map(|&cpu| Mask::from([cpu])).collect::<Vec<_>>()),
            (format!("map:{list}"), entries.iter().map(|&cpu| numbers.iter().copied().filter(|n| *n == cpu).collect()).collect()),
            (format!("numa-map:{list}"), entries.iter().map(|&number| numa(number)).collect()),
            (format!("core-map:{list}"), entries.iter().map(|&number| core(number)).collect()),
        ] {
            let expected: Vec<Mask> = places.iter().cycle().take(ranks as usize).cloned().collect();
            let is_there = !expected.is_empty() && expected.iter().all(|mask| !mask.is_empty());
            match masks(&usable, &bind, ranks) {
                Ok(masks) => prop_assert_eq!(masks, expected, "{}", bind),
                Err(error) => prop_assert!(!is_there, "{bind}: {error}"),
            }
        }
    }
}
