//! The layer that takes each call and its request of its caller's budget.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::budget::{Budget, Name};
use super::request_body::{AnswerBody, Form, RequestBody};
use crate::identity::Caller;
use crate::limits::{FOREIGN_REQUEST_MAX, MESSAGE_MAX};

/// Counts calls; to be put behind [`crate::authorize::AuthorizeLayer`], which finds out who calls.
#[derive(Clone, Debug)]
pub(super) struct BudgetLayer {
    pub(super) budget: Arc<Budget>,
    /// Returns true if the call at a path takes a stream of messages.
    pub(super) takes_stream: fn(&str) -> bool,
}

impl<S> Layer<S> for BudgetLayer {
    type Service = Counted<S>;

    fn layer(&self, services: S) -> Counted<S> {
        Counted { services, budget: Arc::clone(&self.budget), takes_stream: self.takes_stream }
    }
}

/// The services behind a [`BudgetLayer`].
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    services: S,
    budget: Arc<Budget>,
    takes_stream: fn(&str) -> bool,
}

/// Form of the requests of the call at `path`. Those that are not of our protocol, health and reflection, are open to everybody and
/// small.
fn form(path: &str, takes_stream: fn(&str) -> bool) -> Form {
    match path {
        path if takes_stream(path) => Form::Stream,
        path if path.starts_with("/lattice.") => Form::One { longest: MESSAGE_MAX },
        _ => Form::One { longest: FOREIGN_REQUEST_MAX },
    }
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.services.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let name: Name = request.extensions().get::<Caller>().cloned();
        let call = match self.budget.call(name.clone()) {
            Ok(place) => Arc::new(place),
            Err(error) => {
                tracing::info!(%error, "a call was refused");
                let refusal = Status::resource_exhausted(error.to_string()).into_http();
                return Box::pin(std::future::ready(Ok(refusal)));
            }
        };
        let (form, unfinished) = (form(request.uri().path(), self.takes_stream), self.budget.unfinished(name));
        let held = Arc::clone(&call);
        let request = request.map(|body| Body::new(RequestBody::new(body, form, unfinished, held)));
        let answer = self.services.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(AnswerBody::new(body, call)))) })
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
