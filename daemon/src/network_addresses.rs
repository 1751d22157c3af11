//! The addresses at which other machines may reach this one.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// The addresses of this machine's interfaces except loopback and link-local ones, IPv4 first.
pub fn network_addresses() -> Vec<IpAddr> {
    let addresses = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    let (mut all, v6): (Vec<_>, Vec<_>) = addresses.filter(|address| reaches_far(*address)).partition(IpAddr::is_ipv4);
    all.extend(v6);
    all
}

fn reaches_far(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_others_are_neither_loopback_nor_link_local() {
        assert!(network_addresses().into_iter().all(reaches_far));
        for (address, far) in [
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("10.0.0.1", true),
            ("fd00::7", true),
        ] {
            assert_eq!(reaches_far(address.parse().unwrap()), far, "{address}");
        }
    }
}
