//! NICs of this node, from `/sys/class/cxi_user`. libcxi also lists them, but in a structure that has grown over time,
//! with a size that the caller must know.

use std::io;
use std::path::PathBuf;

use super::{CxiError, Nic};

/// Directory of CXI devices.
#[derive(Clone, Debug)]
pub struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys/class/cxi_user".into())
    }
}

impl Sysfs {
    /// Another directory with the same layout.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    pub(super) fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        let failed = |source| CxiError::System { nic: self.0.display().to_string(), action: "listing devices", source };
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            // Without a driver there are no devices.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            numbers.extend(name.to_str().and_then(|name| number(name).ok()));
        }
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|number| self.nic(number)).collect())
    }

    fn nic(&self, number: u32) -> Nic {
        let name = format!("cxi{number}");
        let link = std::fs::read_to_string(self.0.join(&name).join("device/properties/link"));
        // 0 means down. A driver that does not report the link is assumed to have one, since a dead NIC fails soon
        // enough.
        let is_up = link.map_or(true, |link| link.trim() != "0");
        Nic { name, is_up }
    }
}

/// Number of a device, with which libcxi opens it.
pub(super) fn number(nic: &str) -> Result<u32, CxiError> {
    let digits = nic.strip_prefix("cxi").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| CxiError::NicName(nic.chars().take(40).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_in_the_order_of_their_numbers() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, link) in [("cxi10", "1\n"), ("cxi2", "0\n"), ("cxi0", "1\n"), ("cxisomething", "1\n")] {
            let properties = directory.path().join(name).join("device/properties");
            std::fs::create_dir_all(&properties).expect("a directory");
            std::fs::write(properties.join("link"), link).expect("a file");
        }
        let nics = Sysfs::at(directory.path()).nics().expect("readable");
        let seen: Vec<_> = nics.iter().map(|nic| (nic.name.as_str(), nic.is_up)).collect();
        assert_eq!(seen, [("cxi0", true), ("cxi2", false), ("cxi10", true)]);
        assert_eq!(Sysfs::at(directory.path().join("missing")).nics().expect("no driver"), []);
    }
}
