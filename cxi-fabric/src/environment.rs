//! Variables that let a rank use the fabric, and variables of an outer launcher that must not reach it.
//!
//! libfabric's cxi provider reads `SLINGSHOT_VNIS` (its first number), `SLINGSHOT_DEVICES` and `SLINGSHOT_SVC_IDS`. The lists of devices and
//! services correspond by position; if one of the variables is missing, the provider ignores the others. Cray MPICH reads `SLINGSHOT_TCS`.
//! `FI_CXI_DEFAULT_VNI` and `FI_CXI_AUTH_KEY` come from the design document. The first one is used only for services without a list of VNIs.
//! libfabric does not read the second one at present.

use std::fmt;

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::fabric::Credentials;
use crate::node::{NicService, TrafficClasses};

/// Prefixes of variables that no user sets. With those of an outer launcher, a rank would use the network of another job, or its hardware
/// collectives. Each version of libfabric's cxi provider reads more variables for collectives.
const STALE_PREFIXES: [&str; 3] = ["SLINGSHOT_", "FI_CXI_COLL_", "FI_CXI_HWCOLL_"];

/// Single variables with the same effect.
const STALE_NAMES: [&str; 2] = ["FI_CXI_DEFAULT_VNI", "FI_CXI_AUTH_KEY"];

/// True for an inherited variable that only a launcher sets. It is removed before the variables of this launch are set.
pub fn is_stale(name: &str) -> bool {
    STALE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || STALE_NAMES.contains(&name)
}

/// Provider for libfabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Slingshot.
    #[default]
    Cxi,
    /// InfiniBand and RoCE.
    Verbs,
}

impl Provider {
    /// Name of the provider in `FI_PROVIDER`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cxi => "cxi",
            Self::Verbs => "verbs",
        }
    }
}

/// Fabric resources of the ranks of a node.
#[derive(Clone, Copy, Debug)]
pub struct RankFabric<'a> {
    /// Provider for libfabric.
    pub provider: Provider,
    /// Credentials of the launch; none on a fabric that needs none.
    pub credentials: Option<&'a Credentials>,
    /// Services of the node, one per NIC.
    pub services: &'a [NicService],
    /// Traffic classes that the services allow.
    pub traffic_classes: TrafficClasses,
}

impl RankFabric<'_> {
    /// Variables of every rank on this node. `is_set` returns true for variables that the user has set: the user's choice of a provider takes
    /// precedence.
    pub fn variables(&self, is_set: impl Fn(&str) -> bool) -> Variables {
        let mut variables = Variables::default();
        if !is_set("FI_PROVIDER") {
            variables.push("FI_PROVIDER", self.provider.name().to_owned());
        }
        let Some(credentials) = self.credentials else { return variables };
        variables.push("FI_CXI_DEFAULT_VNI", credentials.vni.to_string());
        if let Some(key) = credentials.auth_key.as_ref().filter(|key| !key.is_empty()) {
            variables.0.push(("FI_CXI_AUTH_KEY", key.expose_hex()));
        }
        if !self.services.is_empty() {
            let list =
                |item: &dyn Fn(&NicService) -> String| self.services.iter().map(item).collect::<Vec<_>>().join(",");
            let job_vni = credentials.job_vni.map(|vni| format!(",{vni}")).unwrap_or_default();
            variables.push("SLINGSHOT_VNIS", format!("{}{job_vni}", credentials.vni));
            variables.push("SLINGSHOT_DEVICES", list(&|service| service.nic.clone()));
            variables.push("SLINGSHOT_SVC_IDS", list(&|service| service.svc_id.to_string()));
            variables.push("SLINGSHOT_TCS", self.traffic_classes.to_string());
        }
        variables
    }
}

/// Names and values, including a key. `Debug` shows only the names.
#[derive(Default)]
pub struct Variables(Vec<(&'static str, Zeroizing<String>)>);

impl Variables {
    fn push(&mut self, name: &'static str, value: String) {
        self.0.push((name, Zeroizing::new(value)));
    }

    /// All variables, in no particular order.
    pub fn expose(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::secret::Secret;
    use crate::vni::Vni;

    fn vni(number: u32) -> Vni {
        Vni::new(number).expect("a number")
    }

    fn credentials() -> Credentials {
        let auth_key = Secret::from_hex("c0ffee");
        Credentials { vni: vni(1024), job_vni: None, auth_key, svc_id: 0, lifetime: None }
    }

    fn services(list: &[(&str, u32)]) -> Vec<NicService> {
        list.iter().map(|(nic, svc_id)| NicService { nic: (*nic).to_owned(), svc_id: *svc_id }).collect()
    }

    fn fabric<'a>(credentials: &'a Credentials, services: &'a [NicService]) -> RankFabric<'a> {
        RankFabric {
            provider: Provider::Cxi,
            credentials: Some(credentials),
            services,
            traffic_classes: TrafficClasses::default(),
        }
    }

    fn map(variables: &Variables) -> BTreeMap<&'static str, &str> {
        variables.expose().collect()
    }

    #[test]
    fn lists_are_in_the_order_of_the_nics_and_of_the_nodes_own_length() {
        let credentials = credentials();
        for (list, devices, ids) in [
            ([("cxi0", 11), ("cxi1", 11), ("cxi3", 12)].as_slice(), "cxi0,cxi1,cxi3", "11,11,12"),
            (&[("cxi2", 7)], "cxi2", "7"),
        ] {
            let services = services(list);
            let variables = fabric(&credentials, &services).variables(|_| false);
            let variables = map(&variables);
            assert_eq!(variables["SLINGSHOT_DEVICES"], devices);
            assert_eq!(variables["SLINGSHOT_SVC_IDS"], ids);
            assert_eq!((variables["SLINGSHOT_VNIS"], variables["SLINGSHOT_TCS"]), ("1024", "0xa"));
            assert_eq!((variables["FI_CXI_DEFAULT_VNI"], variables["FI_CXI_AUTH_KEY"]), ("1024", "c0ffee"));
            assert_eq!(variables["FI_PROVIDER"], "cxi");
        }
    }

    #[test]
    fn the_vni_that_libfabric_takes_comes_before_that_of_the_job() {
        let credentials = Credentials { job_vni: Some(vni(2000)), ..credentials() };
        let services = services(&[("cxi0", 1)]);
        assert_eq!(map(&fabric(&credentials, &services).variables(|_| false))["SLINGSHOT_VNIS"], "1024,2000");
    }

    #[test]
    fn the_users_choice_of_a_provider_wins() {
        let (credentials, services) = (credentials(), services(&[]));
        let variables = fabric(&credentials, &services).variables(|name| name == "FI_PROVIDER");
        assert!(!map(&variables).contains_key("FI_PROVIDER"));
        // Without services on this node the three lists would be empty, and libfabric would fail on them.
        assert!(!map(&variables).keys().any(|name| name.starts_with("SLINGSHOT")));
        let verbs = RankFabric { provider: Provider::Verbs, credentials: None, ..fabric(&credentials, &services) };
        assert_eq!(map(&verbs.variables(|_| false)), BTreeMap::from([("FI_PROVIDER", "verbs")]));
    }

    #[test]
    fn whatever_is_set_would_be_stale_in_an_inner_launch() {
        let (credentials, services) = (credentials(), services(&[("cxi0", 1)]));
        let variables = fabric(&credentials, &services).variables(|_| false);
        let ours = variables.expose().filter(|(name, _)| *name != "FI_PROVIDER");
        assert!(ours.into_iter().all(|(name, _)| is_stale(name)));
        assert!(!is_stale("FI_PROVIDER") && !is_stale("FI_CXI_DEVICE_NAME"), "the user's own");
        assert!(!format!("{variables:?}").contains("c0ffee"));
    }
}
