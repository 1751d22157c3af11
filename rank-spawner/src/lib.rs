//! Starts the ranks of an MPI job on one node by `vfork`, binds them, reaps them, and kills all of their processes at the end.
//!
//! # Design
//!
//! [`Spawner`] starts ranks on its own threads and delivers a [`RankProcess`] for each. There is no event loop: a process is a
//! descriptor to poll. The host forks two helpers first in `main`: [`Keeper`] cleans up after a killed launcher, [`ForkServer`]
//! starts sessions of users.
//!
//! ```text
//! Program, Arguments, Environment ─┐
//! plan(UsableCores, CpuBind) ──────┴─> RankCommand ── Spawner ──> RankProcess ── try_wait ──> RankExit
//! main ── fork ──> Keeper, ForkServer                      end of the launch ──> sweep
//! ```
//!
//! # Most used
//!
//! * [`Program`], [`Arguments`], [`Environment`], [`RankCommand`], [`Stdio`]
//! * [`Spawner`], [`RankProcess`], [`RankExit`], [`StartError`]
//! * [`CpuBind`], [`plan`], [`MemBind`], [`Limit`]
//! * [`Keeper`], [`become_subreaper`], [`sweep`], [`LaunchTag`]
//!
//! # Examples
//!
//! The example below, and `examples/own_spawner.rs`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::os::fd::AsFd;
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
//! use pmi_core::ids::Rank;
//! use rank_spawner::{Arguments, Environment, Program, RankCommand, RankExit, Spawner, Stdio};
//!
//! let program = Program::resolve("echo".as_ref(), std::env::var_os("PATH").as_deref(), Path::new("/"))?;
//! let variables = Environment::new(std::env::vars_os())?.for_rank([("PMI_RANK", "0")])?;
//! let command = RankCommand::new(Rank(0), program, Arguments::new(["echo", "hello"])?, variables);
//! let stdout = Stdio::Fd(Arc::new(std::io::stdout().as_fd().try_clone_to_owned()?));
//! // Dropping the spawner kills its ranks.
//! let spawner = Spawner::new()?;
//! let rank = spawner.start(RankCommand { stdout, ..command })?;
//! poll(&mut [PollFd::new(rank.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
//! assert_eq!(rank.try_wait()?, Some(RankExit::Code(0)));
//! # Ok(())
//! # }
//! ```
//!
//! The crate has no event loop: callers wait on descriptors (the feature `tokio` adds one wait). A rank ends with its launcher, and leads a
//! process group of its own. It has a terminal only on request. It has no descriptors but 0, 1, 2, [`PMI_FD`],
//! [`JOB_MEMORY_FD`] and [`NODE_MEMORY_FD`], default signal actions and no blocked signals. The crate needs Linux 5.9 (`close_range`).

mod account;
mod arguments;
mod binding;
mod call_stacks;
mod capabilities;
mod cgroup;
mod changed_signals;
mod child;
mod children;
mod cpus;
mod descriptor_socket;
mod descriptor_table;
mod detach;
mod elf;
mod emptying;
mod environment;
mod exec_string;
mod exit;
mod fork_server;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handlers;
mod keeper;
mod kill;
mod last_resort;
mod launch_tag;
mod limits;
mod memory_binding;
pub mod mpir;
mod orphaned_memory;
mod own_files;
mod pam;
mod pinned;
mod priority;
mod process;
mod process_table;
mod program;
#[cfg(feature = "tokio")]
mod readiness;
mod spawner;
mod stack;
mod standard_command;
mod start;
mod stdio;
mod stream_holders;
mod sweep;
mod syscalls;
mod system_v;
mod terminal;

pub use account::{Account, AccountError, BecomeError, BecomeStep, Privileges, become_user};
pub use arguments::{ArgumentError, Arguments};
pub use binding::{
    BindError, BindHereError, CoreSet, CoreSetParseError, CpuBind, CpuBindParseError, Deal, Dealt, NodePart, Numbering,
    Object, ObjectBind, Share, Shortage, plan, plan_here, usable_here,
};
pub use call_stacks::{CALL_STACK_MAX, call_stacks};
pub use capabilities::{Capabilities, raise_capabilities};
pub use cgroup::{CgroupError, OwnCgroup, usable_cgroup};
pub use child::{AtExec, Step};
pub use cpus::{allowed_cpus, usable_cpus};
pub use descriptor_socket::{DescriptorSocket, PASSED_BYTES_MAX, Passed};
pub use descriptor_table::DescriptorPlan;
pub use emptying::empty_directory;
pub use environment::{Environment, EnvironmentError, RankEnvironment};
pub use exec_string::{MAX_STRING, StringError};
pub use exit::RankExit;
pub use fork_server::{
    ChildMain, ForkEvent, ForkServer, ForkServerError, ForkedProcess, Gate, KeptProcess, KeptState, Label, PAM_WORD,
    PamMain, PamRole, RendezvousError, Roles, Survival, TakeUpError, TakenUp,
};
pub use handlers::{signal_groups, signal_handlers};
pub use keeper::{Keeper, KeeperError};
pub use kill::Survivor;
pub use lattice_inventory::{CpuSet, CpuSetParseError};
pub use launch_tag::LaunchTag;
pub use limits::{Limit, LimitParseError, LimitedResource, raise_descriptor_limit};
pub use memory_binding::{MemBind, MemBindError, MemBindParseError, MemoryNodes, MemoryPolicy, Strictness};
pub use orphaned_memory::remove_orphaned_memory;
pub use own_files::{
    FileIdentity, NoIdentity, NotPrivate, OwnDirectory, PrivateDirectory, Records, remove_recorded, write_own_file,
};
pub use pam::{PamError, PamSession, serve_pam};
pub use pinned::{Claimant, Pinned};
pub use priority::{Priority, give_way};
pub use process::RankProcess;
pub use program::{Program, ProgramError, ProgramFailure};
pub use spawner::Spawner;
pub use start::{BoundTo, RankCommand, StartError};
pub use stdio::{JOB_MEMORY_FD, NODE_MEMORY_FD, PMI_FD, Stdio, pmi_socket};
pub use stream_holders::{OutputStream, StreamHolder};
pub use sweep::{Orphans, SweepScope, Swept, become_subreaper, nothing_to_sweep, reap_adopted, sweep, sweep_group};
pub use terminal::{Terminal, TerminalSize};
