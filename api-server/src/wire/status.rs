//! Errors as reported to callers: a gRPC status with a code, and the text of the error with the texts of its sources.

use std::error::Error;

use cxi_fabric::grants::GrantError;
use cxi_fabric::ledger::LedgerError;
use lattice_pki::PkiError;
use pmi_transport::error_chain::chain;
use pmi_transport::proto::v1::RefusalReason;
use tonic::{Code, Status};

use super::allocation::AllocationRequestError;
use crate::allocations::AllocationError;
use crate::allocations::plan::PlanError;
use crate::fabric::NoCredentials;
use crate::launch::fan_out::{NotStarted, Refusal};
use crate::nodes::{RegisterError, Unready};
use crate::order::OrderError;
use crate::renewal::RenewalError;
use crate::server::NotWritten;
use crate::server::allocating::{AllocateError, ReleaseError};
use crate::server::attending::{DrainError, ResumeError};
use crate::server::launching::LaunchError;

fn status(code: Code, error: &(dyn Error + 'static)) -> Status {
    Status::new(code, chain(error))
}

impl From<AllocationError> for Status {
    fn from(error: AllocationError) -> Self {
        let code = match &error {
            AllocationError::Unknown { .. } => Code::NotFound,
            AllocationError::NotYours { .. } | AllocationError::Elsewhere { .. } => Code::PermissionDenied,
            AllocationError::NotRunning { .. } => Code::FailedPrecondition,
        };
        status(code, &error)
    }
}

impl From<AllocationRequestError> for Status {
    fn from(error: AllocationRequestError) -> Self {
        status(Code::InvalidArgument, &error)
    }
}

impl From<PlanError> for Status {
    fn from(error: PlanError) -> Self {
        use PlanError as E;
        let code = match &error {
            E::AdminsOnly { .. } | E::SystemUser { .. } | E::Inside => Code::PermissionDenied,
            // Waiting clients try again after these errors.
            E::Taken { .. } | E::TooFew { .. } | E::TooMany { .. } | E::Unready { .. } => Code::FailedPrecondition,
            E::Kept { .. } | E::Unclean { .. } | E::Avoided { .. } => Code::FailedPrecondition,
            E::Full | E::FullForUser { .. } | E::BatchesOfUser { .. } | E::NamedByUser { .. } => {
                Code::ResourceExhausted
            }
            E::BatchName | E::BatchSize { .. } => Code::InvalidArgument,
            E::Exists { .. } => Code::AlreadyExists,
            E::NodeName { .. } | E::Twice { .. } | E::ForWhom | E::Id { .. } => Code::InvalidArgument,
        };
        Self::new(code, format!("{}{}", chain(&error), advice(&error)))
    }
}

/// Suggestion of a next command for the user. The error's own text does not contain it, because that text is also the reason of a waiting
/// allocation.
fn advice(error: &PlanError) -> String {
    const QUEUE: &str = "--wait for a place in the queue";
    const NODES: &str = "lattice nodes shows those that there are";
    match error {
        PlanError::TooFew { free: 0, .. } => format!("\ntry: {QUEUE}; {NODES}"),
        PlanError::TooFew { free, .. } => format!("\ntry: -N {free}, or {QUEUE}; {NODES}"),
        PlanError::TooMany { there: 0, .. } => format!("\ntry: {NODES}"),
        PlanError::TooMany { there, .. } => format!("\ntry: -N {there}, or fewer; {NODES}"),
        PlanError::Unready { why: Unready::Unknown, .. } => format!("\ntry: another node; {NODES}"),
        PlanError::Unready { .. } | PlanError::Unclean { .. } => format!("\ntry: another node, or {QUEUE}; {NODES}"),
        PlanError::Taken { .. } => format!("\ntry: {QUEUE}, or other nodes; {NODES}"),
        _ => String::new(),
    }
}

impl From<AllocateError> for Status {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::Random(_) => status(Code::Internal, &error),
            AllocateError::Plan(error) => error.into(),
            AllocateError::Policy(_) => status(Code::PermissionDenied, &error),
            AllocateError::NotWritten(error) => error.into(),
        }
    }
}

impl From<ReleaseError> for Status {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Allocation(error) => error.into(),
            ReleaseError::NotWritten(error) => error.into(),
        }
    }
}

impl From<NotWritten> for Status {
    fn from(error: NotWritten) -> Self {
        status(Code::Unavailable, &error)
    }
}

impl From<RegisterError> for Status {
    fn from(error: RegisterError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<RenewalError> for Status {
    fn from(error: RenewalError) -> Self {
        let code = match &error {
            RenewalError::NoAuthority | RenewalError::NoCertificate => Code::FailedPrecondition,
            RenewalError::TooSoon { .. } => Code::ResourceExhausted,
            RenewalError::Pki(PkiError::Io { .. }) => Code::Unavailable,
            RenewalError::Pki(_) => Code::PermissionDenied,
        };
        status(code, &error)
    }
}

impl From<DrainError> for Status {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::NoReason | DrainError::Nodes(_) => Self::invalid_argument(error.to_string()),
            DrainError::NotWritten(error) => error.into(),
        }
    }
}

impl From<ResumeError> for Status {
    fn from(error: ResumeError) -> Self {
        match error {
            ResumeError::Nodes(error) => Self::invalid_argument(error.to_string()),
            ResumeError::Unknown(error) => Self::not_found(error.to_string()),
            ResumeError::NotWritten(error) => error.into(),
        }
    }
}

impl From<OrderError> for Status {
    fn from(error: OrderError) -> Self {
        let code = match &error {
            OrderError::Unready { .. } => Code::FailedPrecondition,
            OrderError::Random(_) => Code::Internal,
            OrderError::Placement(_) | OrderError::Request(_) | OrderError::Place(_) | OrderError::Overcommit(_) => {
                Code::InvalidArgument
            }
        };
        status(code, &error)
    }
}

impl From<LaunchError> for Status {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Allocation(error) => error.into(),
            LaunchError::Order(error) => error.into(),
            LaunchError::Policy(_) => status(Code::PermissionDenied, &error),
            LaunchError::Quota(_) => status(Code::ResourceExhausted, &error),
            LaunchError::NotWritten(error) => error.into(),
            LaunchError::NotStarted(error) => error.into(),
            LaunchError::Unsigned(_) | LaunchError::Gone => status(Code::Internal, &error),
        }
    }
}

impl From<NotStarted> for Status {
    fn from(error: NotStarted) -> Self {
        match error {
            NotStarted::Refused(refusal) => refusal.into(),
            NotStarted::NoCredentials(error) => error.into(),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.reason {
            RefusalReason::Busy => Code::ResourceExhausted,
            RefusalReason::Unreachable | RefusalReason::Restarting => Code::Unavailable,
            RefusalReason::MalformedRequest => Code::InvalidArgument,
            RefusalReason::User => Code::PermissionDenied,
            _ => Code::FailedPrecondition,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<NoCredentials> for Status {
    fn from(error: NoCredentials) -> Self {
        let code = match &error {
            NoCredentials::Refused { error, .. } => match **error {
                GrantError::Ledger(LedgerError::Vni(_)) => Code::ResourceExhausted,
                _ => Code::Unavailable,
            },
            NoCredentials::Late { .. } => Code::DeadlineExceeded,
            NoCredentials::Ended { .. } => Code::FailedPrecondition,
            NoCredentials::Unsigned { .. } => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::allocations::AllocationState;
    use crate::server::attending::NodeListError;
    use crate::store::StoreError;

    fn check(error: impl Into<Status>, code: Code, words: &str) {
        let status = error.into();
        assert_eq!((status.code(), status.message()), (code, words));
    }

    const OTHERS: &str = "allocation 7f3k belongs to another user\ntry: one of yours; lattice alloc list shows them";

    fn id() -> String {
        "7f3k".to_owned()
    }

    fn full_disk() -> NotWritten {
        NotWritten(StoreError::File(io::Error::other("the disk is full")))
    }

    #[test]
    fn a_change_that_cannot_be_written_down_is_to_be_tried_again() {
        let words = "nothing can be started or changed at present: the state file cannot be opened for this user alone: \
                     the disk is full";
        check(full_disk(), Code::Unavailable, words);
        check(AllocateError::from(full_disk()), Code::Unavailable, words);
        check(ReleaseError::from(full_disk()), Code::Unavailable, words);
        check(DrainError::from(full_disk()), Code::Unavailable, words);
        check(ResumeError::from(full_disk()), Code::Unavailable, words);
        check(LaunchError::from(full_disk()), Code::Unavailable, words);
    }

    #[test]
    fn rights_are_told_from_states_and_from_mistakes() {
        let unknown = "there is no allocation 7f3k, or it was released\ntry: lattice alloc list or lattice queue --all, which show yours; if LATTICE_ALLOC_ID names it still, unset that";
        check(AllocationError::Unknown { id: id() }, Code::NotFound, unknown);
        let not_yours = || AllocationError::NotYours { id: id() };
        check(not_yours(), Code::PermissionDenied, OTHERS);
        check(LaunchError::from(not_yours()), Code::PermissionDenied, OTHERS);
        check(ReleaseError::from(not_yours()), Code::PermissionDenied, OTHERS);
        let not_running = AllocationError::NotRunning { id: id(), state: AllocationState::Released };
        check(not_running, Code::FailedPrecondition, "allocation 7f3k is released, not running");
        check(PlanError::Exists { id: id() }, Code::AlreadyExists, "allocation 7f3k exists already");
        check(PlanError::Twice { node: id() }, Code::InvalidArgument, "node 7f3k is listed twice");
        let unready = PlanError::Unready { node: id(), why: Unready::Lost };
        let lost = "node 7f3k is lost\ntry: another node, or --wait for a place in the queue; lattice nodes shows those that there are";
        check(AllocateError::from(unready), Code::FailedPrecondition, lost);
        check(PlanError::Full, Code::ResourceExhausted, "there are 65536 allocations already; release some");
    }

    #[test]
    fn drains_and_their_ends_are_refused_with_what_to_do() {
        check(
            DrainError::NoReason,
            Code::InvalidArgument,
            "give a reason for the drain, for other administrators\ntry: lattice nodes drain --reason TEXT NODES",
        );
        check(DrainError::from(NodeListError::Empty), Code::InvalidArgument, "no node is named");
        check(ResumeError::from(NodeListError::Empty), Code::InvalidArgument, "no node is named");
    }

    #[test]
    fn a_launch_without_credentials_says_whether_it_may_be_tried_again() {
        let still_waiting = Arc::new(GrantError::StillWaiting(id()));
        let refused = NoCredentials::Refused { allocation: id(), error: Arc::clone(&still_waiting) };
        let words = format!("no fabric credentials for allocation 7f3k: {still_waiting}");
        check(LaunchError::from(NotStarted::from(refused)), Code::Unavailable, &words);
        let late = NoCredentials::Late { allocation: id(), limit: Duration::from_millis(1500) };
        check(late, Code::DeadlineExceeded, "no fabric credentials for allocation 7f3k within 1.500 s");
        let ended = NoCredentials::Ended { allocation: id() };
        check(ended, Code::FailedPrecondition, "allocation 7f3k ended while the launch was prepared");
    }

    #[test]
    fn a_refusal_of_a_node_keeps_its_kind() {
        let kinds = [
            (RefusalReason::Busy, Code::ResourceExhausted),
            (RefusalReason::Unreachable, Code::Unavailable),
            (RefusalReason::Restarting, Code::Unavailable),
            (RefusalReason::MalformedRequest, Code::InvalidArgument),
            (RefusalReason::User, Code::PermissionDenied),
            (RefusalReason::Signature, Code::FailedPrecondition),
            (RefusalReason::UnsupportedCapability, Code::FailedPrecondition),
        ];
        for (reason, code) in kinds {
            let refusal = Refusal { node: "node1".to_owned(), message: "no".to_owned(), reason };
            check(NotStarted::from(refusal), code, "node node1 does not start its part of the launch: no");
        }
    }
}
