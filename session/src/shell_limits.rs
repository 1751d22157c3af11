//! Soft limits, file mode creation mask and priority of the shell that requested a launch. Ranks have them on every node.
//!
//! Only soft limits are used, as with srun(1). Hard limits belong to each node, and only root can raise them there.

use rank_spawner::{Limit, LimitedResource, Priority};

/// Properties that ranks inherit from the user's shell on every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLimits {
    /// Soft limits; missing resources have the limits of their node.
    pub soft: Vec<SoftLimit>,
    /// File mode creation mask; `None` for the mask of the node.
    pub umask: Option<u32>,
    /// Niceness and score of the shell. Ranks have the values of the node if these are greater.
    pub priority: Priority,
    /// Effect of a limit that a node does not allow.
    pub too_high: TooHigh,
}

/// Soft limit of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftLimit {
    /// Resource that is limited.
    pub resource: LimitedResource,
    /// Its limit; [`Limit::UNLIMITED`] for none.
    pub value: u64,
}

/// Effect of a soft limit above the hard limit of a node. Ranks always have the hard limit there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooHigh {
    /// No notice: the limit was not requested.
    #[default]
    Lowered,
    /// The user gets a notice.
    Told,
}

/// Differences between the limits of ranks and the limits of their node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Limits that differ.
    pub(crate) limits: Vec<Limit>,
    /// Limits of the user's shell that are too high, if this is reported.
    pub(crate) lowered: Vec<Lowered>,
}

/// Soft limit above the hard limit of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) asked: SoftLimit,
    pub(crate) hard: u64,
}

impl ShellLimits {
    /// Returns the limits that change for ranks of a session. `own` returns the limits that the ranks would have otherwise.
    pub(crate) fn changes(&self, own: impl Fn(LimitedResource) -> Option<Limit>) -> Changes {
        let mut changes = Changes::default();
        for &asked in &self.soft {
            let Some(own) = own(asked.resource) else { continue };
            let soft = asked.value.min(own.hard);
            if soft < asked.value && self.too_high == TooHigh::Told {
                changes.lowered.push(Lowered { asked, hard: own.hard });
            }
            if soft != own.soft {
                changes.limits.push(Limit { soft, ..own });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_stay_below_the_hard_ones_of_the_node() {
        const NO: u64 = Limit::UNLIMITED;
        let check = |value: u64, (soft, hard): (u64, u64), set: Option<u64>, is_lowered: bool| {
            let resource = LimitedResource::Core;
            let asked = SoftLimit { resource, value };
            let limits: Vec<Limit> = set.map(|soft| Limit { resource, soft, hard }).into_iter().collect();
            for too_high in [TooHigh::Lowered, TooHigh::Told] {
                let shell = ShellLimits { soft: vec![asked], too_high, ..ShellLimits::default() };
                let told = (is_lowered && too_high == TooHigh::Told).then_some(Lowered { asked, hard });
                let expected = Changes { limits: limits.clone(), lowered: told.into_iter().collect() };
                let seen = shell.changes(|resource| Some(Limit { resource, soft, hard }));
                assert_eq!(seen, expected, "{value} within {soft}:{hard}");
            }
        };
        check(5, (0, NO), Some(5), false);
        check(0, (NO, NO), Some(0), false);
        check(NO, (0, NO), Some(NO), false);
        check(7, (7, 9), None, false);
        check(9, (7, 9), Some(9), false);
        check(NO, (7, 9), Some(9), true);
        check(10, (9, 9), None, true);
    }

    #[test]
    fn what_the_shell_does_not_limit_is_left_to_the_node() {
        let core = SoftLimit { resource: LimitedResource::Core, value: 3 };
        let shell = ShellLimits { soft: vec![core], ..ShellLimits::default() };
        assert_eq!(shell.changes(|_| None), Changes::default());
        assert_eq!(ShellLimits::default().changes(|_| panic!("nobody asked")), Changes::default());
    }
}
