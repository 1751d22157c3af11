//! Framework for checks before a call reaches its handler: a [`CallCheck`] admits a request, changed or not, or refuses it.
//! [`Checked`] makes a tower layer of the check.

use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::identity::Peer;

/// A check that every call of a server passes.
pub(crate) trait CallCheck: Clone {
    /// State that is held until the response is ready.
    type Held: Send + 'static;

    /// Passes an admitted request to the handler.
    ///
    /// # Errors
    /// Refuses the request; the status is the response.
    fn admit(&self, request: Request<Body>) -> Result<(Request<Body>, Self::Held), Status>;

    /// Passes the handler's response to the caller.
    fn answer(held: Self::Held, answer: Response<Body>) -> Response<Body>;
}

/// The layer of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<C>(pub(crate) C);

impl<C: CallCheck, S> Layer<S> for Checked<C> {
    type Service = CheckedServices<C, S>;

    fn layer(&self, services: S) -> Self::Service {
        CheckedServices { check: self.0.clone(), services }
    }
}

/// The services with a check before them.
#[derive(Clone, Debug)]
pub(crate) struct CheckedServices<C, S> {
    check: C,
    services: S,
}

impl<C, S> Service<Request<Body>> for CheckedServices<C, S>
where
    C: CallCheck,
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
        let from = peer(request.extensions().get());
        match self.check.admit(request) {
            Ok((request, held)) => {
                let answer = self.services.call(request);
                Box::pin(async move { Ok(C::answer(held, answer.await?)) })
            }
            Err(status) => {
                tracing::info!(from, reason = status.message(), "a call was refused");
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

/// The peer of a call's connection, as the log shows it.
fn peer(peer: Option<&Peer>) -> String {
    match peer {
        Some(Peer::Local(caller) | Peer::Proxied(Ok(caller)) | Peer::Certified { caller: Ok(caller), .. }) => {
            caller.to_string()
        }
        _ => "a caller without a name".to_owned(),
    }
}
