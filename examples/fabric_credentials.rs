//! Fabric credentials without the rest of Lattice: a manager grants a VNI and a key, a node makes CXI services, ranks get variables, and
//! everything is released. The manager is a fake over real HTTP, and the NICs are directories.
//!
//! ```text
//! $ cargo run -p lattice-examples --example fabric_credentials
//! FI_PROVIDER=cxi
//! FI_CXI_DEFAULT_VNI=1024
//! FI_CXI_AUTH_KEY=(32 digits)
//! SLINGSHOT_VNIS=1024
//! SLINGSHOT_DEVICES=cxi0,cxi1
//! SLINGSHOT_SVC_IDS=11,21
//! SLINGSHOT_TCS=0xa
//! everything is given back
//! ```

use std::{error::Error, sync::Arc, time::Duration, time::Instant};

use cxi_fabric::environment::{Provider, RankFabric};
use cxi_fabric::fake::{FakeFabric, Options};
use cxi_fabric::node::{self, Claim, PaperNics};
use cxi_fabric::{FabricConfig, Grants, clock::SystemClock, grants::NoJournal, ledger::Need};

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(10);

    // On the server: one service at the manager for all launches of an allocation.
    let manager = FakeFabric::start(Options::default())?;
    let config: FabricConfig = toml::from_str(&format!("backend = 'rest'\nurl = '{}'", manager.url()))?;
    // A real journal stores the operations to undo after a crash.
    let (clock, journal) = (Arc::new(SystemClock), Box::new(NoJournal));
    let grants = Grants::recover(&"daint".parse()?, config.manager()?, config.vnis, clock, [], journal)?;
    let need = Need { allocation: "4711".into(), nodes: vec!["node0".into()], uid: 1000 };
    let credentials = grants.acquire(&need, deadline)?;

    // On the node: one CXI service on each NIC.
    let directory = tempfile::tempdir()?;
    let nics = PaperNics::make(directory.path(), &["cxi0", "cxi1"])?;
    let traffic_classes = config.traffic_classes;
    let claim = Claim { uid: need.uid, ranks: 2, vnis: vec![credentials.vni], traffic_classes };
    let services = node::claim(&nics, &SystemClock, &claim, deadline)?.services;
    let credentials = Some(&credentials);
    let rank = RankFabric { provider: Provider::Cxi, credentials, services: &services, traffic_classes };
    for (name, value) in rank.variables(|name| std::env::var_os(name).is_some()).expose() {
        let is_secret = name == "FI_CXI_AUTH_KEY";
        println!("{name}={}", if is_secret { format!("({} digits)", value.len()) } else { value.to_owned() });
    }

    // Release: the VNI is free after the manager has deleted the service, and every node has confirmed.
    let stuck = node::release(&nics, &SystemClock, &services, deadline);
    grants.release(&need.allocation)?;
    let undone = grants.settle(deadline);
    for awaited in grants.awaited().iter().filter(|_| stuck.is_empty()) {
        grants.confirmed(&awaited.name, ["node0"])?;
    }
    let is_over = undone.is_empty() && grants.views().is_empty() && manager.services().is_empty();
    println!("{}", if is_over { "everything is given back" } else { "something is left" });
    Ok(())
}
