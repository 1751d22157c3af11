//! Hash tables on the path of a fence. Each frame needs several lookups. SipHash took a tenth of a barrier's instructions. Each process has
//! its own random seed, which no rank or peer receives.

use std::collections::HashMap;

use foldhash::fast::RandomState;

pub(crate) type FastMap<K, V> = HashMap<K, V, RandomState>;
