//! Conversion between surveys of a node's CXI services and the types of [`crate::cxi`].

use pmi_transport::proto::v1 as proto;

use crate::cxi::{CxiSurvey, SurveyedNic, SurveyedService};

/// Encodes a survey for an agent's answer to the API server.
pub fn encode(survey: CxiSurvey) -> proto::ListCxiServicesResponse {
    let service = |service: SurveyedService| proto::CxiService {
        svc_id: service.svc_id,
        vnis: service.vnis,
        uids: service.uids,
        launch_id: service.owner.unwrap_or_default(),
    };
    let device = |nic: SurveyedNic| proto::CxiDevice {
        device: nic.name,
        is_up: nic.is_up,
        services: nic.services.into_iter().map(service).collect(),
    };
    proto::ListCxiServicesResponse {
        backend: survey.backend,
        devices: survey.nics.into_iter().map(device).collect(),
        trouble: survey.trouble.unwrap_or_default(),
    }
}

/// Decodes a survey. Every message is valid, because its numbers are only displayed.
pub fn decode(survey: proto::ListCxiServicesResponse) -> CxiSurvey {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let service = |service: proto::CxiService| SurveyedService {
        svc_id: service.svc_id,
        vnis: service.vnis,
        uids: service.uids,
        owner: text(service.launch_id),
    };
    let nic = |device: proto::CxiDevice| SurveyedNic {
        name: device.device,
        is_up: device.is_up,
        services: device.services.into_iter().map(service).collect(),
    };
    CxiSurvey {
        backend: survey.backend,
        nics: survey.devices.into_iter().map(nic).collect(),
        trouble: text(survey.trouble),
    }
}
