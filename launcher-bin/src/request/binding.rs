//! Binding of the ranks, from all flags that affect it.

use lattice_dialects::per_object::RankBy;
use lattice_session::gpus::GpuBind;
use rank_spawner::{CpuBind, NodePart, Numbering, Object, ObjectBind, Share, Shortage};

use super::RequestError;
use crate::args::{Hint, PlacementArgs};

/// Binding by `--cpu-bind`, `--hint`, `--threads-per-core`, `--cpus-per-task`, `--overcommit` and the order among sockets and cores. If only a
/// number of CPUs is given, each rank is bound to cores. If only a number of threads of a core is given, each rank is bound to threads.
pub(super) fn binding(args: &PlacementArgs) -> Result<CpuBind, RequestError> {
    let named = args.cpu_bind.clone().and_then(|request| request.bind);
    if let (Some(_), Some(bind)) = (args.hint, &named) {
        return Err(RequestError::HintedAndBound { bind: bind.clone() });
    }
    let (hinted, part) = args.hint.map(Hint::binding).unzip();
    let part = part.unwrap_or(NodePart { threads_per_core: args.threads_per_core, ..NodePart::default() });
    let usual = hinted
        .or(args.threads_per_core.map(|_| Object::Thread))
        .or(args.cpus_per_task.map(|_| Object::Core))
        .map_or(CpuBind::None, CpuBind::to);
    let bind = match named.unwrap_or(usual) {
        CpuBind::To(bind) => bind,
        other if part == NodePart::default() => return Ok(other),
        other => return Err(RequestError::NoPartOfCores { bind: other }),
    };
    let in_order = match args.per_object() {
        Some(per_object) => per_object.deals(args.distribution.unwrap_or_default().deals()),
        None => args.distribution.unwrap_or_default().deals(),
    };
    let numbering = args.rank_by.map(RankBy::on_a_node).unwrap_or_default();
    let of_flags = |own, flag| if own == NodePart::default() { flag } else { own };
    Ok(CpuBind::To(ObjectBind {
        object: bind.object,
        share: bind.share.or(args.cpus_per_task.map(Share::Cpus)),
        deals: if bind.deals == [None; 2] { in_order } else { bind.deals },
        numbering: if bind.numbering == Numbering::AsDealt { numbering } else { bind.numbering },
        part: of_flags(bind.part, part),
        shortage: if args.overcommit { Shortage::Shared } else { bind.shortage },
    }))
}

/// Binding to GPUs by `--gpu-bind`, else by `--gpus-per-task`.
pub(super) fn gpus(args: &PlacementArgs) -> GpuBind {
    args.gpu_bind.clone().or(args.gpus_per_task.map(GpuBind::PerTask)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::prepared::tests::commanded;

    #[test]
    fn all_flags_together_make_one_binding() {
        for (line, expected) in [
            ("true", "none"),
            ("--cpu-bind cores true", "cores"),
            ("--cpu-bind verbose,cores true", "cores"),
            ("--cpu-bind verbose true", "none"),
            ("--cpu-bind quiet -c 4 true", "cores:cpus=4"),
            ("-c 4 true", "cores:cpus=4"),
            ("-c4 --cpu-bind=cores -m block:block true", "cores:cpus=4"),
            ("-c4 -O --cpu-bind=ldoms -m cyclic:cyclic true", "numa:cpus=4:over=sockets:overcommit"),
            ("-m *:cyclic --overcommit --cpu-bind numa true", "numa:over=sockets:overcommit"),
            ("-c4 --cpu-bind=cores:cores=2:over=numa -m *:cyclic true", "cores:cores=2:over=numa"),
            ("-c4 --cpu-bind=none true", "none"),
            ("-c4 --cpu-bind=mask_cpu:0x5 true", "map:0+2"),
            ("-c2 -m block:fcyclic true", "cores:cpus=2:each-over=sockets"),
            ("--cpu-bind=threads -m *:cyclic:fcyclic true", "threads:over=sockets:each-over=cores"),
            ("--cpu-bind=threads -m *:block:cyclic true", "threads:over=cores"),
            ("--hint=compute_bound true", "cores:threads-per-core=1"),
            ("--hint memory_bound -c 1 true", "cores:cpus=1:threads-per-core=1:cores-per-socket=1"),
            ("--hint multithread -c 2 true", "threads:cpus=2"),
            ("--hint nomultithread -m *:cyclic true", "threads:over=sockets:threads-per-core=1"),
            ("--tasks-per 2:socket --cpu-bind cores true", "cores:over=sockets*2"),
            ("--ntasks-per-core 1 --cpu-bind threads true", "threads:over=cores"),
            ("--rank-by fill --cpu-bind cores -m *:cyclic true", "cores:over=sockets:in-order"),
            ("--rank-by numa --cpu-bind cores true", "cores:numbered-over=numa"),
            ("--rank-by node --cpu-bind cores true", "cores"),
            ("--threads-per-core=1 true", "threads:threads-per-core=1"),
            ("--threads-per-core=1 -c 3 --cpu-bind=cores true", "cores:cpus=3:threads-per-core=1"),
        ] {
            assert_eq!(commanded(line).unwrap().request.settings.cpu_bind.to_string(), expected, "{line}");
        }
    }

    #[test]
    fn a_number_of_threads_needs_a_binding_to_objects() {
        for bind in ["none", "rank", "map:0"] {
            let refused = commanded(&format!("--threads-per-core 1 --cpu-bind {bind} true")).unwrap_err().to_string();
            assert!(refused.starts_with("--threads-per-core has no meaning for ranks"), "{refused}");
            assert!(refused.contains(&format!("--cpu-bind={bind}")), "{refused}");
        }
    }
}
