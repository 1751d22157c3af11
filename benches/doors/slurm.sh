# Starts of `true` in an allocation of a real Slurm on three nodes, against srun, as a plain user:
#   lattice dev-cluster --nodes 3 -- bash benches/doors/slurm.sh
. $(dirname $(readlink -f $0))/nodes.sh
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
until [ "$($as_user env SLURM_CONF=$SLURM_CONF sinfo -h -o '%D %t' 2>/dev/null)" = "3 idle" ]; do sleep 0.05; done
in_job="$as_user env SLURM_CONF=$SLURM_CONF salloc -Q -N 3"
launch="lattice launch -N 3 -n 3 true"
$in_job $in_turns "a first launch against srun" 3 "$launch" "srun -N 3 -n 3 true"
$in_job lattice start -- $in_turns "a launch in lattice start against srun" 3 "$launch" "srun --overlap -N 3 -n 3 true"
