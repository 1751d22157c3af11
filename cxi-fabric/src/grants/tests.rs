//! One service that the manager never deletes, and further services after it in the order.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::clock::VirtualClock;
use crate::error::{Call, Trouble};
use crate::fabric::Numbering;

/// Manager in memory. Deleting one of its services takes all the available time.
struct Hanging {
    clock: Arc<VirtualClock>,
    services: Arc<Mutex<BTreeMap<ServiceId, ServiceName>>>,
    hangs_on: ServiceId,
    /// The creation of this service panics after the service is made.
    panics_on: ServiceId,
}

fn out_of_time(last: Trouble) -> FabricError {
    let call = Call { service: "http://fm".into(), method: "DELETE", path: "/".into(), tries: 1 };
    FabricError::OutOfTime { call, last }
}

impl FabricManager for Hanging {
    fn create(&self, request: &ServiceRequest, _deadline: Instant) -> Result<Service, FabricError> {
        let vni = request.vni.ok_or(FabricError::VniNeeded { backend: "hanging" })?;
        let id = ServiceId(request.name.to_string());
        self.services.lock().insert(id.clone(), request.name.clone());
        assert_ne!(id, self.panics_on, "the manager's client has a bug");
        Ok(Service { id, vni, job_vni: None })
    }

    fn credentials(&self, service: &Service, _deadline: Instant) -> Result<Option<Credentials>, FabricError> {
        Ok(Some(Credentials::keyless(service)))
    }

    fn delete(&self, id: &ServiceId, deadline: Instant) -> Result<(), FabricError> {
        let left = deadline.saturating_duration_since(self.clock.now());
        if left.is_zero() {
            return Err(out_of_time(Trouble::NotAsked));
        }
        if *id == self.hangs_on {
            self.clock.sleep(left);
            return Err(out_of_time(Trouble::Slow(left)));
        }
        self.services.lock().remove(id);
        Ok(())
    }

    fn find(&self, request: &ServiceRequest, _deadline: Instant) -> Result<Option<Service>, FabricError> {
        let services = self.services.lock();
        let id = services.iter().find(|(_, name)| **name == request.name).map(|(id, _)| id.clone());
        Ok(id.zip(request.vni).map(|(id, vni)| Service { id, vni, job_vni: None }))
    }

    fn list(&self, _deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        let listed =
            |(id, name): (&ServiceId, &ServiceName)| Listed { id: id.clone(), name: Some(name.clone()), vni: None };
        Ok(self.services.lock().iter().map(listed).collect())
    }

    fn numbering(&self) -> Numbering {
        Numbering::Ours { job_vni: false }
    }
}

struct Scene {
    clock: Arc<VirtualClock>,
    services: Arc<Mutex<BTreeMap<ServiceId, ServiceName>>>,
    grants: Grants,
}

impl Scene {
    fn new() -> Self {
        let (clock, services) = (Arc::new(VirtualClock::default()), Arc::default());
        let grants = Self::grants(&clock, &services);
        Self { clock, services, grants }
    }

    fn grants(clock: &Arc<VirtualClock>, services: &Arc<Mutex<BTreeMap<ServiceId, ServiceName>>>) -> Grants {
        let hangs_on = ServiceId("daint.b.1".into());
        let panics_on = ServiceId("daint.p.0".into());
        let manager = Hanging { clock: clock.clone(), services: services.clone(), hangs_on, panics_on };
        let range = "1024-1027".parse().expect("a range");
        Grants::recover(
            &"daint".parse().expect("a name"),
            Box::new(manager),
            range,
            clock.clone(),
            [],
            Box::new(NoJournal),
        )
        .expect("recovered")
    }

    fn soon(&self) -> Instant {
        self.clock.now() + Duration::from_secs(10)
    }

    /// Makes the services `a`, `b` and `c`. The manager hangs on `b`.
    fn acquire(&self) {
        for allocation in ["a", "b", "c"] {
            let need = Need { allocation: allocation.into(), nodes: Vec::new(), uid: 1000 };
            self.grants.acquire(&need, self.soon()).expect("credentials");
        }
    }

    fn left(&self) -> Vec<String> {
        self.services.lock().keys().map(ToString::to_string).collect()
    }
}

#[test]
fn a_deletion_that_hangs_holds_up_the_others_once() {
    let scene = Scene::new();
    scene.acquire();
    for allocation in ["a", "b", "c"] {
        scene.grants.release(allocation).expect("journalled");
    }
    let deadline = scene.soon();
    assert_eq!(scene.grants.settle(deadline).len(), 2);
    assert_eq!(scene.left(), ["daint.b.1", "daint.c.2"]);
    // A round without time left does not change the order.
    assert_eq!(scene.grants.settle(deadline).len(), 2);
    assert_eq!(scene.grants.settle(scene.soon()).len(), 1);
    assert_eq!(scene.left(), ["daint.b.1"]);
}

#[test]
fn a_stranger_that_cannot_be_deleted_keeps_no_other_alive() {
    let mut scene = Scene::new();
    scene.acquire();
    scene.grants = Scene::grants(&scene.clock, &scene.services);
    let reaped = scene.grants.reap(scene.soon()).expect("listed");
    assert_eq!((reaped.names, reaped.errors.len()), (vec!["daint.a.0".to_owned()], 2));
    let reaped = scene.grants.reap(scene.soon()).expect("listed");
    assert_eq!((reaped.names, reaped.errors.len()), (vec!["daint.c.2".to_owned()], 1));
}

#[test]
fn a_call_that_panics_while_it_makes_a_service_leaves_none() {
    let scene = Scene::new();
    let need = |allocation: &str| Need { allocation: allocation.into(), nodes: Vec::new(), uid: 1000 };
    std::thread::scope(|scope| {
        let launch = scope.spawn(|| scene.grants.acquire(&need("p"), scene.soon()));
        assert!(launch.join().is_err(), "it panics");
    });
    assert_eq!(scene.left(), ["daint.p.0"]);
    scene.grants.acquire(&need("p"), scene.soon()).expect("credentials of another service");
    assert_eq!(scene.grants.settle(scene.soon()).len(), 0);
    assert_eq!(scene.left(), ["daint.p.1"]);
}
