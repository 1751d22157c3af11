//! The check that charges each call and its request to the caller's budget.

use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;

use super::answer_body::AnswerBody;
use super::budget::{Budget, Exhausted, Name, Place};
use super::request_body::{Form, RequestBody};
use crate::call_check::CallCheck;
use crate::identity::Caller;
use crate::limits::{FOREIGN_REQUEST_MAX, MESSAGE_MAX};

/// Counts calls. Must run after [`crate::authorize::Authorize`], which identifies the caller.
#[derive(Clone, Debug)]
pub(super) struct CountCalls {
    pub(super) budget: Arc<Budget>,
    /// Returns true if the call at a path takes a stream of messages.
    pub(super) takes_stream: fn(&str) -> bool,
}

/// Form of the requests of the call at `path`. Calls outside our protocol (health, reflection) are open to all callers, so their
/// requests must be small.
fn form(path: &str, takes_stream: fn(&str) -> bool) -> Form {
    match path {
        path if takes_stream(path) => Form::Stream,
        path if path.starts_with("/lattice.") => Form::One { longest: MESSAGE_MAX },
        _ => Form::One { longest: FOREIGN_REQUEST_MAX },
    }
}

/// State that a call holds until its response is ready.
pub(super) struct Answering {
    form: Form,
    unread: Place,
    call: Arc<Place>,
}

impl CallCheck for CountCalls {
    type Held = Answering;

    fn admit(&self, request: Request<Body>) -> Result<(Request<Body>, Answering), Status> {
        let name: Name = request.extensions().get::<Caller>().cloned();
        let refusal = |error: Exhausted| Status::resource_exhausted(error.to_string());
        let call = Arc::new(self.budget.call(name.clone()).map_err(refusal)?);
        let form = form(request.uri().path(), self.takes_stream);
        let (unfinished, unread) = (self.budget.unfinished(name.clone()), self.budget.unread(name));
        let held = Arc::clone(&call);
        let request = request.map(|body| Body::new(RequestBody::new(body, form, unfinished, held)));
        Ok((request, Answering { form, unread, call }))
    }

    fn answer(Answering { form, unread, call }: Answering, answer: Response<Body>) -> Response<Body> {
        answer.map(|body| Body::new(AnswerBody::new(body, form, unread, call)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_each_call_is_known() {
        let streams = crate::listen::takes_stream;
        assert_eq!(form("/lattice.v1.LaunchService/AttachLaunch", streams), Form::Stream);
        assert_eq!(form("/lattice.v1.NodeService/ReportLaunch", streams), Form::Stream);
        assert_eq!(form("/lattice.v1.AllocationService/LaunchTasks", streams), Form::One { longest: MESSAGE_MAX });
        assert_eq!(form("/grpc.health.v1.Health/Check", streams), Form::One { longest: FOREIGN_REQUEST_MAX });
    }
}
