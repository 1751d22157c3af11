//! Conversion between messages about CXI services and the types of [`crate::nics`].

use std::time::Duration;

use cxi_fabric::node::NicService;
use pmi_transport::proto::v1 as proto;
use proto::nics_task::What;

use super::signed_credentials::SignedCredentials;
use super::{WireError, cxi, fabric};
use crate::nics::{NicsAnswer, NicsTask};

fn list(services: &[NicService]) -> proto::ServiceList {
    proto::ServiceList { services: fabric::encode_services(services) }
}

/// Encodes a task.
pub(super) fn encode(task: &NicsTask) -> proto::NicsTask {
    let what = match task {
        NicsTask::Claim { credentials: SignedCredentials { message, signature }, ranks, spared } => {
            What::Claim(proto::ClaimServices {
                credentials: Some(message.clone()),
                signature: signature.clone(),
                ranks: *ranks,
                spared: spared.as_deref().map(list),
            })
        }
        NicsTask::Find(svc_id) => What::Find(*svc_id),
        NicsTask::Release(services) => What::Release(list(services)),
        NicsTask::Sweep { vni, spared, within } => What::Sweep(proto::SweepServices {
            vni: (*vni).into(),
            spared: Some(list(spared)),
            within_ms: within.as_millis() as u64,
        }),
        NicsTask::Survey => What::Survey(proto::Nothing {}),
    };
    proto::NicsTask { what: Some(what) }
}

/// Decodes a task.
///
/// # Errors
/// Fails for a message without a task, and like [`fabric`].
pub(super) fn decode(task: proto::NicsTask) -> Result<NicsTask, WireError> {
    Ok(match task.what.ok_or(WireError::Missing { what: "task" })? {
        What::Claim(proto::ClaimServices { credentials, signature, ranks, spared }) => {
            let message = credentials.ok_or(WireError::Missing { what: "credentials" })?;
            let spared = spared.map(|spared| fabric::decode_services(&spared.services)).transpose()?;
            NicsTask::Claim { credentials: SignedCredentials { message, signature }, ranks, spared }
        }
        What::Find(svc_id) => NicsTask::Find(svc_id),
        What::Release(services) => NicsTask::Release(fabric::decode_services(&services.services)?),
        What::Sweep(proto::SweepServices { vni, spared, within_ms }) => NicsTask::Sweep {
            vni: fabric::decode_vni(vni)?,
            spared: fabric::decode_services(&spared.unwrap_or_default().services)?,
            within: Duration::from_millis(within_ms),
        },
        What::Survey(_) => NicsTask::Survey,
    })
}

/// Encodes the answer of the process that has run the task.
pub(super) fn encode_answer(answer: NicsAnswer) -> proto::NicsAnswer {
    proto::NicsAnswer {
        services: fabric::encode_services(&answer.services),
        warnings: answer.warnings,
        trouble: answer.trouble.unwrap_or_default(),
        survey: Some(cxi::encode(answer.survey)),
    }
}

/// Decodes the answer of the process that has run the task.
///
/// # Errors
/// Fails like [`fabric::decode_services`].
pub(super) fn decode_answer(answer: proto::NicsAnswer) -> Result<NicsAnswer, WireError> {
    Ok(NicsAnswer {
        services: fabric::decode_services(&answer.services)?,
        warnings: answer.warnings,
        trouble: Some(answer.trouble).filter(|trouble| !trouble.is_empty()),
        survey: answer.survey.map(cxi::decode).unwrap_or_default(),
    })
}
