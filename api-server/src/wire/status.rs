//! Errors as callers are told them: a gRPC status with a code, and the error's words with those of its sources.

use std::error::Error;

use cxi_fabric::grants::GrantError;
use cxi_fabric::ledger::LedgerError;
use pmi_transport::error_chain::chain;
use pmi_transport::proto::v1::RefusalReason;
use tonic::{Code, Status};

use super::allocation::AllocationRequestError;
use crate::allocations::AllocationError;
use crate::allocations::plan::PlanError;
use crate::fabric::NoCredentials;
use crate::launch::fan_out::{NotStarted, Refusal};
use crate::nodes::RegisterError;
use crate::order::OrderError;
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
            AllocationError::NotYours { .. } => Code::PermissionDenied,
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
            E::AdminsOnly { .. } => Code::PermissionDenied,
            // Those who wait try again after these.
            E::Taken { .. } | E::TooFew { .. } | E::Unready { .. } => Code::FailedPrecondition,
            E::Full | E::FullForUser { .. } => Code::ResourceExhausted,
            E::Exists { .. } => Code::AlreadyExists,
            E::NodeName { .. } | E::Twice { .. } | E::ForWhom | E::Id { .. } => Code::InvalidArgument,
        };
        status(code, &error)
    }
}

impl From<AllocateError> for Status {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::Random(_) => status(Code::Internal, &error),
            AllocateError::Plan(error) => error.into(),
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
            OrderError::Placement(_) | OrderError::Request(_) | OrderError::Place(_) => Code::InvalidArgument,
        };
        status(code, &error)
    }
}

impl From<LaunchError> for Status {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Allocation(error) => error.into(),
            LaunchError::Order(error) => error.into(),
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
            RefusalReason::Unreachable => Code::Unavailable,
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
