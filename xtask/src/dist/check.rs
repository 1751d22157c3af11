//! Installs the packages as an administrator does, and launches with the installed programs: the .deb and the .rpm in a clean Debian system with
//! systemd, the image on the same system, the wheel next to an MPI library of the Python package index.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Packages, native};
use crate::shell::{command, repository, run};

/// Debian release of the clean system.
const RELEASE: &str = "bookworm";

/// Mounts what a booted system has, and runs a script in the system at `$1`.
const ENTER: &str = r#"
    mount --make-rprivate /; mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"; mount -t tmpfs tmp "$1/tmp"
    mount --bind "$2" "$1/mnt"; exec chroot "$1" /bin/bash -euxc "$3"
"#;

/// Parts of a check after the installation: launches on one machine and on a cluster, as a user without privileges, and the other files.
const USE: &str = r#"
    as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp USER=nobody "$@"; }
    works() {
        test "$(as_user lattice launch -n 4 hostname | wc -l)" = 4
        test "$(as_user lattice dev-cluster --nodes 2 -- lattice launch -n 4 --tasks-per-node 2 printenv LATTICE_NODE | sort -u | wc -l)" = 2
    }
    works
    systemd-analyze verify --man=no lattice-api.service lattice-agent.service
    getent passwd lattice lattice-agent; test -d /etc/lattice/pki
    bash -n /usr/share/bash-completion/completions/lattice
    for page in lattice lattice-launch lattice-alloc-create; do zcat /usr/share/man/man1/$page.1.gz | grep -q '^.SH SYNOPSIS'; done
    test -e /usr/lib/lattice/libpmi.so.0 -a -e /usr/lib/lattice/libpmi2.so.0
"#;

/// Upgrade under a running launch with a changed setting: the launch continues, and the setting is kept.
const UPGRADE: &str = r#"
    echo '# changed' >>/etc/lattice/api.toml
    as_user lattice dev-cluster --nodes 2 -- sh -c 'lattice launch -n 4 --tasks-per-node 2 sh -c "touch /tmp/runs; until [ -e /tmp/done ]; do sleep 0.1; done"' &
    until [ -e /tmp/runs ]; do sleep 0.1; done
    rm /tmp/runs; upgrade
    touch /tmp/done; chmod 666 /tmp/done; wait $!
    rm /tmp/done; works; grep -q '# changed' /etc/lattice/api.toml
"#;

const LEFTOVERS: &str = r#"
    leftovers() { find / -xdev -path /mnt -prune -o \( -iname '*lattice*' -o -path '/etc/lattice/*' \) -print; }
"#;

/// The packages of one format: how they are installed, upgraded and removed, and what the removal leaves.
struct Format {
    install: String,
    upgrade: String,
    remove: &'static str,
}

/// Checks all packages. `dist` has the tree and the packages.
pub(super) fn run_all(dist: &Path, packages: &Packages) -> Result<()> {
    let next = "0.1.1";
    let next_deb = native::deb(&packages.tools, dist, next, &packages.glibc)?;
    let next_rpm = native::rpm(dist, next, &packages.glibc)?;
    let mounted = |path: &Path| format!("/mnt/{}", path.file_name().unwrap_or_default().display());
    let clean = clean_system(dist)?;
    let formats = [
        Format {
            install: format!("dpkg -i {}", mounted(&packages.deb)),
            upgrade: format!("dpkg -i {}", mounted(&next_deb)),
            remove: "dpkg -r lattice-mpi; grep -q '# changed' /etc/lattice/api.toml; dpkg -P lattice-mpi
                test -z \"$(leftovers)\"; if getent passwd lattice lattice-agent; then exit 1; fi",
        },
        Format {
            // The system has the libraries, and not as packages of this format.
            install: format!("rpm --initdb; rpm -i --nodeps {}", mounted(&packages.rpm)),
            upgrade: format!("rpm -U --nodeps {}", mounted(&next_rpm)),
            // Certificates and the changed setting stay, as with other packages of this format.
            remove: "rpm -e lattice-mpi; test -e /etc/lattice/api.toml.rpmsave; test -z \"$(leftovers | grep -v '^/etc/lattice')\"",
        },
    ];
    for Format { install, upgrade, remove } in formats {
        let script = format!(
            "{LEFTOVERS}\n{install}\n{USE}\nupgrade() {{ {upgrade}; }}\n{UPGRADE}\n{remove}\n\
             if [ -e /usr/bin/lattice ]; then exit 1; fi"
        );
        in_copy(&clean, dist, &script)?;
    }
    image(dist, &clean)?;
    wheel(dist, &packages.wheel)
}

/// A clean system with systemd and rpm. It is made once.
fn clean_system(dist: &Path) -> Result<PathBuf> {
    let root = dist.join(format!("clean-{RELEASE}"));
    let complete = root.join("complete");
    if !complete.exists() {
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
        }
        run(command("debootstrap", "--variant=minbase --include=systemd,rpm").arg(RELEASE).arg(&root))?;
        fs::write(&complete, "")?;
    }
    Ok(root)
}

/// Runs a script in a copy of the clean system. `dist` is its `/mnt`.
fn in_copy(clean: &Path, dist: &Path, script: &str) -> Result<()> {
    let copy = dist.join("installed");
    run(command("rm", "-rf --one-file-system").arg(&copy))?;
    run(command("cp", "--archive").arg(clean).arg(&copy))?;
    let mut enter = command("unshare", "--mount --pid --fork sh -ec");
    run(enter.arg(ENTER).arg("sh").arg(&copy).arg(dist).arg(script))?;
    run(command("rm", "-rf --one-file-system").arg(&copy))
}

/// Builds the image on the clean system, and launches in a container. The machine may mount control groups of both versions, which crun does not
/// support, and permits no higher limits.
fn image(dist: &Path, clean: &Path) -> Result<()> {
    let script = r#"
        podman() { command podman --root "$1/store" --runroot "$1/run" "${@:2}"; }
        tar -C "$2" -c . | podman "$1" import - localhost/lattice-system
        podman "$1" build -f "$3" --build-arg SYSTEM=localhost/lattice-system -t localhost/lattice "$4"
        umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
        run() { podman "$1" run --rm --cgroups=disabled --network=none --ulimit nofile=1024 --ulimit nproc=1000 "${@:2}"; }
        test "$(run "$1" --entrypoint lattice localhost/lattice launch -n 4 hostname | wc -l)" = 4
        podman "$1" rmi --all --force"#;
    let store = dist.join("podman");
    let file = repository().join("packaging/Containerfile");
    let mut build = command("unshare", "--mount --pid --fork --mount-proc bash -euxo pipefail -c");
    build.env("STORAGE_DRIVER", "vfs").arg(script).arg("bash").arg(&store).arg(clean).arg(file).arg(dist.join("tree"));
    run(&mut build)?;
    run(command("rm", "-rf --one-file-system").arg(&store))
}

/// Installs the wheel next to MPICH and mpi4py, and launches a program.
fn wheel(dist: &Path, wheel: &Path) -> Result<()> {
    let environment = dist.join("environment");
    run(command("python3", "-m venv --clear").arg(&environment))?;
    let program = |name: &str| environment.join("bin").join(name);
    run(command(program("pip"), "install --quiet mpich==5.0.2 mpi4py==4.1.2").arg(wheel))?;
    let ranks = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2";
    run(command(program("lattice"), "launch -n 2").arg(program("python")).arg("-c").arg(ranks))?;
    run(command(program("pip"), "uninstall --quiet --yes").arg(super::NAME))
}
