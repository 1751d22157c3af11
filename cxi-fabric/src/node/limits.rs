//! Resources of a NIC that a service reserves, and lower limits for a NIC with too few.

use std::fmt;

use super::Shortage;

/// Countable resources of a NIC, in the order of the driver's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Portal table entries.
    Ptes,
    /// Transmit queues.
    Txqs,
    /// Target queues.
    Tgqs,
    /// Event queues.
    Eqs,
    /// Counters.
    Cts,
    /// List entries.
    Les,
    /// Trigger list entries.
    Tles,
    /// Addressing contexts.
    Acs,
}

impl Resource {
    /// All resources, in order.
    pub const ALL: [Self; 8] =
        [Self::Ptes, Self::Txqs, Self::Tgqs, Self::Eqs, Self::Cts, Self::Les, Self::Tles, Self::Acs];

    /// Need of a rank, and the maximum of a service. The numbers are those of other launchers (Slurm, Flux), and derive from
    /// the objects that libfabric opens for a rank.
    fn per_rank_and_max(self) -> (u16, u16) {
        match self {
            Self::Ptes => (6, 2048),
            Self::Txqs => (2, 1024),
            Self::Tgqs => (1, 512),
            Self::Eqs => (2, 2047),
            Self::Cts => (1, 2047),
            Self::Les => (16, 16384),
            Self::Tles => (1, 2048),
            Self::Acs => (2, 1022),
        }
    }
}

impl fmt::Display for Resource {
    /// Name in the driver and in `cxi_service`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ptes => "PTEs",
            Self::Txqs => "TXQs",
            Self::Tgqs => "TGQs",
            Self::Eqs => "EQs",
            Self::Cts => "CTs",
            Self::Les => "LEs",
            Self::Tles => "TLEs",
            Self::Acs => "ACs",
        })
    }
}

/// Limit of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Number that is reserved for the service.
    pub reserve: u16,
    /// Maximum for the service.
    pub max: u16,
}

/// Limits of every resource, in the order of [`Resource::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits([Limit; 8]);

impl Limits {
    /// Smallest pool of trigger list entries that the driver makes.
    const LEAST_TLES: u16 = 8;

    /// Limits for this number of ranks on one node.
    pub fn for_ranks(ranks: u32) -> Self {
        let ranks = u16::try_from(ranks).unwrap_or(u16::MAX);
        Self(Resource::ALL.map(|resource| {
            let (per_rank, max) = resource.per_rank_and_max();
            let reserve = per_rank.saturating_mul(ranks).min(max);
            match resource {
                // Trigger list entries are not shared: the driver sets both values to the same number.
                Resource::Tles => {
                    let reserve = reserve.max(Self::LEAST_TLES);
                    Limit { reserve, max: reserve }
                }
                _ => Limit { reserve, max },
            }
        }))
    }

    /// The limit of one resource.
    pub fn of(&self, resource: Resource) -> Limit {
        self.0[resource as usize]
    }

    /// All limits, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, Limit)> {
        Resource::ALL.into_iter().zip(self.0)
    }

    /// The resource that was lacking, from the available numbers that the driver reports. The driver checks the resources in
    /// order and stops at the first shortage; later numbers are meaningless. For trigger list entries it only counts pools.
    pub(super) fn lacking(&self, available: [u16; 8]) -> Shortage {
        let counted = self.iter().zip(available).filter(|((resource, _), _)| *resource != Resource::Tles);
        let short = counted.map(|((resource, limit), available)| (resource, limit.reserve, available));
        short
            .into_iter()
            .find(|(_, asked, available)| available < asked)
            .map_or(Shortage::Unknown, |(resource, asked, available)| Shortage::Resource { resource, asked, available })
    }

    /// Limits that reserve the available number, or nothing if it is unknown; `None` if lower limits cannot help. A service
    /// without a reservation shares the rest of the NIC with all other services.
    pub(super) fn lowered(&self, shortage: Shortage) -> Option<Self> {
        let mut lowered = *self;
        match shortage {
            Shortage::Resource { resource, asked, available } if available < asked => {
                lowered.0[resource as usize].reserve = available;
            }
            Shortage::ListEntryPools => lowered.0[Resource::Les as usize].reserve = 0,
            Shortage::TriggerPools => lowered.0[Resource::Tles as usize] = Limit::default(),
            Shortage::Unknown => {
                for (limit, resource) in lowered.0.iter_mut().zip(Resource::ALL) {
                    limit.reserve = 0;
                    if resource == Resource::Tles {
                        limit.max = 0;
                    }
                }
            }
            Shortage::Resource { .. } => {}
        }
        (lowered != *self).then_some(lowered)
    }
}

/// Warning that a launch gets less of a NIC than it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The NIC.
    pub nic: String,
    /// Resource that is short.
    pub shortage: Shortage,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; the launch reserves less and shares what others leave", self.nic, self.shortage)
    }
}

impl Warning {
    pub(super) fn lowered(nic: &str, shortage: Shortage) -> Self {
        Self { nic: nic.to_owned(), shortage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_ranks_up_to_what_a_nic_has() {
        let limits = Limits::for_ranks(4);
        assert_eq!(limits.of(Resource::Les), Limit { reserve: 64, max: 16384 });
        assert_eq!(limits.of(Resource::Tles), Limit { reserve: 8, max: 8 });
        let most = Limits::for_ranks(u32::MAX);
        assert!(most.iter().all(|(_, limit)| limit.reserve == limit.max), "{most:?}");
        assert_eq!(most.of(Resource::Ptes).reserve, 2048);
    }

    #[test]
    fn the_first_resource_that_lacks_is_found_and_lowered() {
        let limits = Limits::for_ranks(100);
        let available = [2048, 1024, 512, 2047, 7, 0, 0, 0];
        let shortage = limits.lacking(available);
        assert_eq!(shortage, Shortage::Resource { resource: Resource::Cts, asked: 100, available: 7 });
        let lowered = limits.lowered(shortage).expect("lower");
        assert_eq!(lowered.of(Resource::Cts), Limit { reserve: 7, max: 2047 });
        assert_eq!(lowered.of(Resource::Les), limits.of(Resource::Les));
    }

    #[test]
    fn lowering_comes_to_an_end() {
        let mut limits = Limits::for_ranks(64);
        let shortages = [Shortage::ListEntryPools, Shortage::TriggerPools, Shortage::Unknown];
        for shortage in shortages {
            limits = limits.lowered(shortage).expect("lower");
        }
        assert!(limits.iter().all(|(_, limit)| limit.reserve == 0));
        assert!(shortages.iter().all(|shortage| limits.lowered(*shortage).is_none()));
    }
}
