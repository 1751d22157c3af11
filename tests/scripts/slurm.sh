# shellcheck shell=bash
slurm=$here/slurm
mkdir -p $slurm/state
export SLURM_CONF=$slurm/slurm.conf
cat >$SLURM_CONF <<END
ClusterName=test
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool.%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=node[0-2] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=node[0-2] Default=YES MaxTime=INFINITE State=UP
END
$enter node0 slurmctld
for node in node0 node1 node2; do $enter $node slurmd -N $node || exit; done
until [ "$(user sinfo -h -o '%D %t' 2>/dev/null)" = "3 idle" ]; do sleep 0.05; done
