//! The record of a launch, as its task changes it: progress while it runs, and its end.

use super::spec::shown;
use super::{completion, launch, summary};
use crate::launch::checkpoint::Progressed;
use crate::launch::event::Completion;
use crate::launch::summary::{Course, Summary};
use crate::store::LaunchRecord;

impl LaunchRecord {
    /// Stores the progress of a running launch.
    pub(crate) fn note_progress(&mut self, progressed: &Progressed, at_present: &Summary) {
        self.checkpoint = Some(launch::encode_progressed(progressed));
        self.summary = Some(summary::encode(at_present));
    }

    /// Stores the end of the launch, and removes the parts that only its nodes and ranks needed.
    pub(crate) fn note_end(&mut self, end: &Completion, at_end: &Summary, course: Course) {
        self.summary = Some(summary::encode(at_end));
        self.spec = self.spec.as_ref().map(shown);
        self.complete = Some(completion::encode(end));
        self.checkpoint = None;
        self.course = course.into();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pmi_core::ids::NodeIndex;
    use pmi_transport::proto::v1::{AppSpec, LaunchSpec, Variable};

    use super::*;
    use crate::launch::summary::tests::active;
    use crate::wire::spec::ShownSpec;

    fn record() -> LaunchRecord {
        let variable = Variable { name: "TOKEN".into(), value: "1".into() };
        let spec = LaunchSpec {
            launch_id: "l".to_owned(),
            secret: "0123456789abcdef".into(),
            link_key: "0123456789abcdef0123456789abcdef".into(),
            environment: vec![variable.clone()],
            apps: vec![AppSpec { program: "/bin/a".into(), set: vec![variable], ..AppSpec::default() }],
            ..LaunchSpec::default()
        };
        LaunchRecord { spec: Some(spec), ..LaunchRecord::default() }
    }

    fn has_secrets(spec: &LaunchSpec) -> bool {
        let has_variables = !spec.environment.is_empty() || spec.apps.iter().any(|app| !app.set.is_empty());
        !spec.secret.is_empty() || !spec.link_key.is_empty() || has_variables
    }

    #[test]
    fn clients_are_shown_neither_the_secret_nor_the_environment() {
        let spec = ShownSpec::of(&record()).into_message();
        assert_eq!((spec.launch_id.as_str(), &spec.apps[0].program[..]), ("l", &b"/bin/a"[..]));
        assert!(!has_secrets(&spec));
    }

    #[test]
    fn the_secret_is_kept_while_a_launch_runs_and_gone_from_its_record_at_its_end() {
        let mut record = record();
        let progressed = Progressed { ended: vec![NodeIndex(3)], ..Progressed::default() };
        record.note_progress(&progressed, &active("l"));
        assert_eq!(record.checkpoint.as_ref().map(|kept| kept.over.clone()), Some(vec![3]));
        assert!(has_secrets(record.spec.as_ref().unwrap()), "a server that takes the launch up needs them");
        let completion = Completion {
            launch_id: "l".into(),
            allocation_id: "a".to_owned(),
            cause: None,
            message: String::new(),
            ends: Vec::new(),
            duration: Duration::from_secs(1),
            usage: None,
            by_node: None,
        };
        record.note_end(&completion, &active("l"), Course::Ran);
        assert!(!has_secrets(record.spec.as_ref().unwrap()));
        assert!(record.checkpoint.is_none() && record.complete.unwrap().success);
    }
}
