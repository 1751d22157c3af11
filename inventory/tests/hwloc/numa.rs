//! NUMA nodes: memory without CPUs.

use crate::check_machine;
use crate::made_up::Machine;

#[test]
fn memory_without_cpus() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &["0", "1", "2", "3"]).groups("package", &["0-1", "2-3"]);
    machine.numa(&[("0-1", "10 20 20"), ("2-3", "20 10 20"), ("", "20 20 10")]);
    check_machine(&machine);
}
