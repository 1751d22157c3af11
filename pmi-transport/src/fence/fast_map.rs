//! Hash tables of the path of a fence. A frame looks up several; SipHash took a tenth of a barrier's instructions. Each process has a seed of
//! its own, which no rank or peer learns.

use std::collections::HashMap;

use foldhash::fast::RandomState;

pub(crate) type FastMap<K, V> = HashMap<K, V, RandomState>;
