//! libcxi and `cxi_service`, both replaced by programs that the test builds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cxi_fabric::clock::{SystemClock, VirtualClock};
use cxi_fabric::node::{
    Claim, CxiBackend, CxiError, CxiServiceCommand, LibCxi, Limits, Resource, ServiceSpec, Shortage, Sysfs,
    TrafficClasses, claim, holders, release,
};
use cxi_fabric::vni::Vni;

/// A directory with three NICs; the second one has no link.
fn sysfs(directory: &Path) -> Sysfs {
    for (name, link) in [("cxi0", "1\n"), ("cxi1", "0\n"), ("cxi2", "1\n")] {
        let properties = directory.join("sys").join(name).join("device/properties");
        std::fs::create_dir_all(&properties).expect("a directory");
        std::fs::write(properties.join("link"), link).expect("a file");
    }
    Sysfs::at(directory.join("sys"))
}

fn vni(number: u32) -> Vni {
    Vni::new(number).expect("a number")
}

fn spec() -> ServiceSpec {
    ServiceSpec {
        uid: 1000,
        vnis: vec![vni(1024), vni(1025)],
        traffic_classes: TrafficClasses::default(),
        limits: Limits::for_ranks(4),
    }
}

/// Fake libcxi. The files in its directory control it; each test loads its own copy.
struct FakeLibrary {
    directory: tempfile::TempDir,
    backend: LibCxi,
}

impl FakeLibrary {
    fn build() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let library = directory.path().join("libcxi.so.1");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_libcxi.c");
        let home = format!("-DHOME=\"{}\"", directory.path().display());
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", &home, "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .output()
            .expect("cc, the C compiler, is needed by this test");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let backend = LibCxi::load(&library, sysfs(directory.path())).expect("it loads");
        Self { directory, backend }
    }

    /// Makes the next calls of `function` return these codes.
    fn inject(&self, function: &str, codes: &[i32]) {
        let lines: String = codes.iter().map(|code| format!("{code}\n")).collect();
        std::fs::write(self.directory.path().join(function), lines).expect("a file");
    }

    /// Calls so far, one line each.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn libcxi_gets_the_descriptor_that_the_driver_expects() {
    let library = FakeLibrary::build();
    assert_eq!(library.backend.nics().expect("seen").len(), 3);
    let svc_id = library.backend.create("cxi2", &spec()).expect("made");
    let limits = "PTE=24/2048 TXQ=8/1024 TGQ=4/512 EQ=8/2047 CT=4/2047 LE=64/16384 TLE=8/8 AC=8/1022";
    assert_eq!(
        library.calls(),
        [
            "open 2".to_owned(),
            format!(
                "alloc members=1 vnis=1 tcs=1 limits=1 enable=1 system=0 uid=1000 type=1,0 vni=1024,1025 tc=01010 {limits}"
            ),
            "close".to_owned()
        ]
    );
    let found = library.backend.list("cxi2").expect("listed");
    let ours = found.iter().find(|service| service.svc_id == svc_id).expect("it is in the list");
    assert_eq!((ours.uids.as_slice(), ours.vnis.as_slice()), ([1000].as_slice(), [vni(1024), vni(1025)].as_slice()));
    let default = found.iter().find(|service| service.svc_id == 1).expect("the default service");
    assert!(default.uids.is_empty() && default.vnis.is_empty());
    library.backend.destroy("cxi2", svc_id).expect("ended");
    let open = |call: &str| library.calls().iter().filter(|line| line.starts_with(call)).count();
    assert_eq!(open("open"), open("close"), "every device is closed again");
    assert_eq!(open("list"), open("free"), "every list is freed");
}

#[test]
fn error_numbers_of_the_driver_are_understood() {
    let library = FakeLibrary::build();
    let error = |function: &str, code: i32| {
        library.inject(function, &[code]);
        match function {
            "destroy" => library.backend.destroy("cxi0", 5).expect_err("injected"),
            _ => library.backend.create("cxi0", &spec()).expect_err("injected"),
        }
    };
    assert!(matches!(error("destroy", -16), CxiError::Busy { .. }));
    assert!(matches!(error("destroy", -22), CxiError::Unknown { svc_id: 5, .. }));
    assert!(matches!(error("alloc", -1), CxiError::Denied { .. }));
    assert!(matches!(error("open", -19), CxiError::System { action: "opening the device", .. }));
    // The numbers after an error number are written to the library's failure report.
    library.inject("alloc", &[-28, 2048, 1024, 512, 3]);
    let CxiError::Short { shortage, .. } = library.backend.create("cxi0", &spec()).expect_err("short") else {
        panic!("not short");
    };
    assert_eq!(shortage, Shortage::Resource { resource: Resource::Eqs, asked: 8, available: 3 });
    library.inject("alloc", &[-28, -2]);
    let error = library.backend.create("cxi0", &spec()).expect_err("no pool").to_string();
    assert_eq!(error, "cxi0: all pools of trigger list entries are taken");
}

#[test]
fn a_launchs_services_are_claimed_and_released_through_libcxi() {
    let library = FakeLibrary::build();
    let clock = VirtualClock::default();
    let deadline = Instant::now() + Duration::from_secs(30);
    library.inject("alloc", &[-28, -2]);
    let wanted = Claim { uid: 1000, ranks: 4, vnis: vec![vni(1024)], traffic_classes: TrafficClasses::default() };
    let claimed = claim(&library.backend, &clock, &wanted, deadline).expect("claimed");
    assert_eq!(claimed.services.iter().map(|service| service.nic.as_str()).collect::<Vec<_>>(), ["cxi0", "cxi2"]);
    assert_eq!(claimed.warnings.len(), 1);
    assert_eq!(holders(&library.backend, vni(1024)).expect("listed"), claimed.services);
    library.inject("destroy", &[-16, -16]);
    assert!(release(&library.backend, &clock, &claimed.services, deadline).is_empty());
    assert_eq!(holders(&library.backend, vni(1024)).expect("listed"), []);
}

#[test]
fn a_missing_library_says_what_to_do() {
    let error = LibCxi::load("/nonexistent/libcxi.so.1", Sysfs::default()).map(|_| ()).expect_err("none").to_string();
    assert!(error.contains("/nonexistent/libcxi.so.1") && error.contains("install the library libcxi"), "{error}");
    // A library that is not libcxi is rejected before any of its functions is called.
    let libc = LibCxi::load("libc.so.6", Sysfs::default()).map(|_| ()).expect_err("not libcxi").to_string();
    assert!(libc.contains("cxil_open_device"), "{libc}");
}

/// A `cxi_service` program that runs this script.
fn program(directory: &Path, script: &str) -> PathBuf {
    let (source, path) = (directory.join("cxi_service.source"), directory.join("cxi_service"));
    std::fs::write(&source, format!("#!/bin/sh\n{script}\n")).expect("a file");
    // A process of its own writes the file that is executed. Otherwise a child that another test forks could keep it busy.
    let installed = Command::new("install").args(["-m", "755"]).args([source, path.clone()]).status();
    assert!(installed.expect("install runs").success());
    path
}

#[test]
fn cxi_service_is_called_and_its_words_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let home = directory.path().display();
    let script = format!(
        "echo \"$*\" >> {home}/calls\n\
         case $1 in\n\
         create) cp \"$5\" {home}/description; echo; echo 'Successfully created service: 12';;\n\
         delete) echo 'Successfully deleted service: 12';;\n\
         list) printf ' ID: 12\\n   ---> Valid Members : uid=1000\\n   VNIs               : 1024\\n';;\n\
         esac"
    );
    let backend = CxiServiceCommand::new(program(directory.path(), &script), sysfs(directory.path()));
    assert_eq!(backend.create("cxi0", &spec()).expect("made"), 12);
    let description = std::fs::read_to_string(directory.path().join("description")).expect("it was there");
    assert!(description.contains("restricted_vnis: 1") && description.contains("  vni: 1025"), "{description}");
    assert_eq!(holders(&backend, vni(1024)).expect("listed").len(), 3);
    backend.destroy("cxi0", 12).expect("ended");
    let calls = std::fs::read_to_string(directory.path().join("calls")).expect("calls");
    assert!(calls.lines().next().is_some_and(|line| line.starts_with("create -d cxi0 -y /")), "{calls}");
    assert_eq!(calls.lines().last(), Some("delete -d cxi0 -s 12"));
}

#[test]
fn cxi_service_refuses_in_words() {
    type Expected = fn(&CxiError) -> bool;
    let cases: [(&str, Expected); 4] = [
        ("Device or resource busy", |error| matches!(error, CxiError::Busy { .. })),
        ("No space left on device", |error| matches!(error, CxiError::Short { shortage: Shortage::Unknown, .. })),
        ("Operation not permitted", |error| matches!(error, CxiError::Denied { .. })),
        ("Remote I/O error", |error| error.to_string().ends_with("Failed to create service: Remote I/O error")),
    ];
    for (words, is_expected) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let script = format!("echo 'cxi_service: Failed to create service: {words}' >&2; exit 1");
        let backend = CxiServiceCommand::new(program(directory.path(), &script), sysfs(directory.path()));
        let error = backend.create("cxi0", &spec()).expect_err("refused");
        assert!(is_expected(&error), "{words}: {error}");
    }
    // Without numbers the launch reserves nothing, and still runs.
    let directory = tempfile::tempdir().expect("a directory");
    let script = "grep -q 'res: [1-9]' \"$5\" && { echo 'x: No space left on device' >&2; exit 1; }\n\
                  echo 'Successfully created service: 3'";
    let backend = CxiServiceCommand::new(program(directory.path(), script), sysfs(directory.path()));
    let wanted = Claim { uid: 1000, ranks: 4, vnis: vec![vni(1024)], traffic_classes: TrafficClasses::default() };
    let claimed = claim(&backend, &SystemClock, &wanted, Instant::now() + Duration::from_secs(60)).expect("claimed");
    assert_eq!((claimed.services.len(), claimed.warnings.len()), (2, 2));
}
