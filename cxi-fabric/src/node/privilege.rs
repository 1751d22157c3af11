//! Privilege of this process to make CXI services, read from `/proc/self/status`.

use std::fs;

/// Number of CAP_SYS_ADMIN (`linux/capability.h`).
const CAP_SYS_ADMIN: u32 = 21;

/// True if this process has CAP_SYS_ADMIN, which CXI services need. Also true if the system does not report it: without the
/// privilege the NIC refuses soon enough.
pub fn may_make_services() -> bool {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| has(&status, CAP_SYS_ADMIN)).unwrap_or(true)
}

fn has(status: &str, capability: u32) -> Option<bool> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim();
    Some(u64::from_str_radix(digits, 16).ok()? >> capability & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_one_bit_of_the_mask() {
        for (status, expected) in [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", Some(true)),
            ("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", Some(false)),
            ("CapEff:\t0000000000200000\n", Some(true)),
            ("Name:\tx\n", None),
        ] {
            assert_eq!(has(status, CAP_SYS_ADMIN), expected, "{status}");
        }
    }
}
