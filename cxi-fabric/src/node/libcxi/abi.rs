//! Structures of the cxi driver's interface (`cxi-abi.h`). The kernel defines them, so library versions cannot change them. Bit
//! fields have the layout of little-endian machines, the only machines with Slingshot NICs.

use crate::node::{FoundService, Resource, ServiceSpec, Shortage, VNIS_PER_SERVICE};
use crate::vni::Vni;

/// `struct cxi_svc_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Descriptor {
    /// Flags from the lowest bit on: restricted_members, restricted_vnis, restricted_tcs, resource_limits, enable, is_system_svc.
    flags: u8,
    vni_count: u8,
    vnis: [u16; VNIS_PER_SERVICE],
    /// The four classes, and the Ethernet class.
    traffic_classes: [u8; 5],
    members: [Member; 2],
    limits: [[u16; 2]; Resource::ALL.len()],
    svc_id: u32,
}

const RESTRICTED_MEMBERS: u8 = 1;
const RESTRICTED_VNIS: u8 = 1 << 1;
const ALL_RESTRICTIONS_ENABLED: u8 = 0b1_1111;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Member {
    id: u32,
    /// `enum cxi_svc_member_type`.
    kind: u32,
}

const MEMBER_UID: u32 = 1;

/// `struct cxi_svc_fail_info`. Flags are bytes, because a C `bool` has whatever value was written there.
#[repr(C)]
#[derive(Default)]
pub(super) struct FailInfo {
    available: [u16; Resource::ALL.len()],
    no_le_pools: u8,
    no_tle_pools: u8,
    no_counter_pools: u8,
}

/// `struct cxil_svc_list`: a count, followed by that many descriptors.
#[repr(C)]
pub(super) struct List {
    pub(super) count: u32,
    pub(super) descriptors: [Descriptor; 0],
}

/// `struct cxil_dev`, of which this crate reads nothing.
#[repr(C)]
pub(super) struct Device(u8);

const _: () = assert!(size_of::<Descriptor>() == 68 && size_of::<FailInfo>() == 20);

impl Descriptor {
    /// Descriptor for the service in `spec`.
    pub(super) fn new(spec: &ServiceSpec) -> Self {
        let mut descriptor = Self { flags: ALL_RESTRICTIONS_ENABLED, ..Self::default() };
        descriptor.members[0] = Member { id: spec.uid, kind: MEMBER_UID };
        for (place, vni) in descriptor.vnis.iter_mut().zip(&spec.vnis) {
            *place = vni.get();
            descriptor.vni_count += 1;
        }
        for (place, is_allowed) in descriptor.traffic_classes.iter_mut().zip(spec.traffic_classes.flags()) {
            *place = is_allowed.into();
        }
        for (place, (_, limit)) in descriptor.limits.iter_mut().zip(spec.limits.iter()) {
            *place = [limit.max, limit.reserve];
        }
        descriptor
    }

    /// Converts an existing service.
    pub(super) fn found(&self) -> FoundService {
        let is_set = |flag| self.flags & flag != 0;
        let members = self.members.iter().filter(|member| is_set(RESTRICTED_MEMBERS) && member.kind == MEMBER_UID);
        let vnis = self.vnis.iter().take(if is_set(RESTRICTED_VNIS) { self.vni_count.into() } else { 0 });
        FoundService {
            svc_id: self.svc_id,
            uids: members.map(|member| member.id).collect(),
            vnis: vnis.filter_map(|vni| Vni::new((*vni).into()).ok()).collect(),
        }
    }
}

impl FailInfo {
    /// Resource that was short for `spec`.
    pub(super) fn shortage(&self, spec: &ServiceSpec) -> Shortage {
        match (self.no_le_pools, self.no_tle_pools) {
            (0, 0) => spec.limits.lacking(self.available),
            (0, _) => Shortage::TriggerPools,
            _ => Shortage::ListEntryPools,
        }
    }
}
