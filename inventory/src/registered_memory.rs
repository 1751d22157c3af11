//! Devices for which communication libraries register memory. On a node without such a device, neither a library's search for devices
//! nor its monitoring of unmapped memory is of use.

use crate::root::Root;

/// Directories with an entry for each device: InfiniBand, RoCE, iWARP, Omni-Path, EFA and usNIC; Slingshot; accelerators of the kernel's
/// accel class, such as Gaudi.
const CLASSES: [&str; 3] = ["sys/class/infiniband", "sys/class/cxi_user", "sys/class/accel"];

/// Files of drivers and modules: Aries; GPUs for computation of NVIDIA, AMD and other vendors; GDRCopy; XPMEM; KNEM.
const DEVICES: [&str; 7] =
    ["dev/kgni0", "dev/nvidiactl", "dev/kfd", "dev/dri/renderD128", "dev/gdrdrv", "dev/xpmem", "dev/knem"];

/// True if a process below this root may find a device for which it registers memory, or if this cannot be determined.
pub(crate) fn is_possible(root: &Root) -> bool {
    let has_entries = |class: &&str| root.names(class).map_or(true, |names| !names.is_empty());
    let is_there = |device: &&str| root.path(device).try_exists().unwrap_or(true);
    CLASSES.iter().any(has_entries) || DEVICES.iter().any(is_there)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_device_of_a_fabric_a_gpu_or_a_module_is_found() {
        let nothing = tempfile::tempdir().unwrap();
        fs::create_dir_all(nothing.path().join("sys/class/infiniband")).unwrap();
        fs::create_dir_all(nothing.path().join("dev/dri")).unwrap();
        assert!(!is_possible(&Root::at(nothing.path())), "a class without a device");
        for device in CLASSES.iter().map(|class| format!("{class}/x0")).chain(DEVICES.map(str::to_owned)) {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(&device);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            assert!(is_possible(&Root::at(root.path())), "{device}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_read_may_have_one() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/class")).unwrap();
        symlink("infiniband", root.path().join("sys/class/infiniband")).unwrap();
        assert!(is_possible(&Root::at(root.path())), "a link to itself");
    }
}
