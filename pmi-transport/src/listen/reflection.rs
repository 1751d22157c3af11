//! The reflection service, which describes all services. It is built at the first request: decoding the descriptors takes milliseconds,
//! which an agent that runs one launch would waste.

use std::convert::Infallible;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};
use tower::Service;

use crate::proto::DESCRIPTORS;

/// Both versions of the service.
static ROUTES: LazyLock<Routes> = LazyLock::new(|| {
    routes().unwrap_or_else(|error| {
        tracing::warn!("the services cannot be described: {error}");
        Routes::default()
    })
});

fn routes() -> Result<Routes, Error> {
    let describing = || Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    Ok(Routes::new(describing().build_v1()?).add_service(describing().build_v1alpha()?))
}

/// Adds the service in both versions. Current grpcurl still uses the old name.
pub(super) fn added_to(services: Routes) -> Routes {
    services.add_service(Reflection::<false>).add_service(Reflection::<true>)
}

/// The service of one version, under its old or new name.
#[derive(Clone, Copy, Debug)]
struct Reflection<const OLD: bool>;

impl<const OLD: bool> NamedService for Reflection<OLD> {
    const NAME: &'static str =
        if OLD { "grpc.reflection.v1alpha.ServerReflection" } else { "grpc.reflection.v1.ServerReflection" };
}

impl<const OLD: bool> Service<Request<Body>> for Reflection<OLD> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <Routes as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ROUTES.clone().call(request)
    }
}
