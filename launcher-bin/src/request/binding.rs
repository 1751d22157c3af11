//! Binding of the ranks by all flags that say something about it.

use rank_spawner::{CpuBind, Object, ObjectBind, Share, Shortage};

use crate::args::{Order, PlacementArgs};

/// Binding by `--cpu-bind`, `--cpus-per-task`, `--overcommit` and the order among sockets. With a number of CPUs and nothing else, each
/// rank is bound to cores.
pub(super) fn binding(args: &PlacementArgs) -> CpuBind {
    let asked = match (&args.cpu_bind, args.cpus_per_task) {
        (Some(asked), _) => asked.clone(),
        (None, Some(_)) => CpuBind::to(Object::Core),
        (None, None) => CpuBind::None,
    };
    let CpuBind::To(bind) = asked else { return asked };
    let sockets = args.distribution.and_then(|distribution| distribution.sockets);
    CpuBind::To(ObjectBind {
        object: bind.object,
        share: bind.share.or(args.cpus_per_task.map(Share::Cpus)),
        over: bind.over.or(sockets.filter(|order| *order == Order::Cyclic).map(|_| Object::Socket)),
        shortage: if args.overcommit { Shortage::Shared } else { bind.shortage },
    })
}

#[cfg(test)]
mod tests {
    use crate::prepared::tests::commanded;

    #[test]
    fn all_flags_together_make_one_binding() {
        for (line, expected) in [
            ("true", "none"),
            ("--cpu-bind cores true", "cores"),
            ("-c 4 true", "cores:cpus=4"),
            ("-c4 --cpu-bind=cores -m block:block true", "cores:cpus=4"),
            ("-c4 -O --cpu-bind=ldoms -m cyclic:cyclic true", "numa:cpus=4:over=sockets:overcommit"),
            ("-m *:cyclic --overcommit --cpu-bind numa true", "numa:over=sockets:overcommit"),
            ("-c4 --cpu-bind=cores:cores=2:over=numa -m *:cyclic true", "cores:cores=2:over=numa"),
            ("-c4 --cpu-bind=none true", "none"),
            ("-c4 --cpu-bind=mask_cpu:0x5 true", "map:0+2"),
        ] {
            assert_eq!(commanded(line).unwrap().request.settings.cpu_bind.to_string(), expected, "{line}");
        }
    }
}
