//! Samples of launches as messages, and strategies for types that several messages contain.

mod calls;
mod events;
mod foreign;
mod gathered;
mod specs;

use std::num::NonZeroU32;
use std::time::Duration;

use pmi_core::Phase;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{App, Job, Placement};
use pmi_transport::proto::v1 as proto;
use proptest::prelude::*;
use rank_spawner::{CpuBind, Limit, LimitedResource, MemBind, Priority, RankExit};

use super::{TIME_MAX, WireError, placed};
use crate::gpus::GpuBind;
use crate::placed::{ClusterTerms, PlacedLaunch};
use crate::settings::{
    AtExec, DataExchange, Entrance, FailedRanks, JobMemory, LaunchSettings, LimitSignal, LostNodes, OverdueRelease,
    PmiFamily, PmiSpec, RankOutput, Restarts, StdinTarget, TemporaryFiles, TerminalSize, Timeouts,
};
use crate::shell_limits::{ShellLimits, SoftLimit, TooHigh};
use crate::spec::{AppSpec, LaunchSecret, SessionSpec};
use crate::template::Template;

/// Returns the error text of a refused message.
fn refusal<T: std::fmt::Debug>(result: Result<T, WireError>) -> String {
    result.unwrap_err().to_string()
}

fn app(program: &str) -> AppSpec {
    AppSpec {
        program: program.into(),
        args: vec!["-x".into(), "".into()],
        directory: "/work".into(),
        set: vec![("A".into(), "1".into())],
        remove: vec!["B*".to_owned()],
        process_set: Some("app://ocean".parse().unwrap()),
    }
}

fn placed_launch() -> PlacedLaunch {
    PlacedLaunch {
        launch_id: "abc".into(),
        allocation_id: Some("alloc".into()),
        job: Job {
            id: JobId::new("kvs_abc_0").unwrap(),
            placement: Placement::block(&[4, 3, 3]),
            apps: vec![App { ranks: 6, appnum: 0 }, App { ranks: 4, appnum: 1 }],
            universe_size: Some(12),
            spawner: None,
            preput: vec![("key".into(), "value".into())],
        },
        hosts: ["node0", "node1", "node2"].map(str::to_owned).to_vec(),
        apps: vec![app("./a"), app("b")],
        settings: settings(),
    }
}

fn settings() -> LaunchSettings {
    LaunchSettings {
        environment: vec![("PATH".into(), "/bin".into())],
        pmi: PmiSpec {
            family: PmiFamily::Pmix,
            entrance: Entrance::Port,
            group_barriers: true,
            job_memory: JobMemory::Off,
            exchange: DataExchange::Lazy,
            restarts: Restarts::Keep,
        },
        pmi_trace: true,
        at_exec: AtExec::Stop,
        ancestors: vec![7, u64::MAX],
        node_memory: std::num::NonZeroU64::new(1 << 20),
        temporary: TemporaryFiles::OfLaunch { below: Some("/scratch".into()) },
        shell_limits: ShellLimits {
            soft: vec![SoftLimit { resource: LimitedResource::Stack, value: Limit::UNLIMITED }],
            umask: Some(0o027),
            priority: Priority { niceness: Some(-3), oom_score_adjust: Some(700) },
            too_high: TooHigh::Told,
        },
        slurm_environment: true,
        rank_variables: false,
        keeps_transports: true,
        cpu_bind: CpuBind::None,
        mem_bind: "map:0,1:prefer".parse().unwrap(),
        gpu_bind: GpuBind::Closest,
        stdin: StdinTarget::File(Template::parse("/in.%r".as_ref()).unwrap()),
        stdout: RankOutput::Terminal,
        failed_ranks: FailedRanks::AreBorne,
        lost_nodes: LostNodes::AreBorne,
        overdue_release: OverdueRelease::Fail,
        timeouts: Timeouts {
            silent: Duration::from_millis(1),
            stuck: Duration::from_millis(2),
            grace_after_failure: Duration::from_millis(3),
            grace_after_interrupt: Duration::from_millis(4),
            prompt: Some(Duration::from_millis(5)),
            output_end: Duration::from_millis(10),
            fence: Some(Duration::from_millis(6)),
            time_limit: Some(Duration::from_millis(7)),
            limit_signal: Some(LimitSignal { signal: 10, ahead: Duration::from_millis(8) }),
            after_first_exit: Some(Duration::from_millis(9)),
        },
    }
}

fn secret() -> LaunchSecret {
    LaunchSecret::from_bytes(std::array::from_fn(|index| index as u8))
}

fn terms() -> ClusterTerms {
    ClusterTerms {
        link_key: None,
        set: None,
        uid: 1000,
        addresses: ["10.0.0.2:50052", "10.0.0.3:50052", "10.0.0.4:50052"].map(str::to_owned).to_vec(),
        secret: secret(),
        barrier_fan_out: NonZeroU32::new(8),
        data_fan_out: None,
        output_window: 65_536,
        stdin_window: 7,
    }
}

fn session() -> SessionSpec {
    placed_launch().session(NodeIndex(1), terms().addresses, secret())
}

fn launch() -> proto::LaunchSpec {
    placed::encode(&placed_launch(), &terms())
}

fn any_rank() -> impl Strategy<Value = Rank> {
    any::<u32>().prop_map(Rank)
}

fn any_exit() -> impl Strategy<Value = RankExit> {
    prop_oneof![
        any::<i32>().prop_map(RankExit::Code),
        any::<(i32, bool)>().prop_map(|(signal, core_dumped)| RankExit::Signal { signal, core_dumped }),
    ]
}

fn any_phase() -> impl Strategy<Value = Option<Phase>> {
    proptest::option::of(prop_oneof![Just(Phase::Silent), Just(Phase::Open), Just(Phase::Finalized)])
}

/// Any valid time of a message, in whole milliseconds.
fn any_time() -> impl Strategy<Value = Duration> {
    (0..=TIME_MAX.as_millis() as u64).prop_map(Duration::from_millis)
}

/// Any text. Messages encode a missing text as an empty one.
fn some_text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(".{1,20}")
}
