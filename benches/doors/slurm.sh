# Starts of `true` in an allocation of a real Slurm on three nodes, against srun, as a plain user:
#   lattice dev-cluster --nodes 3 -- bash benches/doors/slurm.sh
. $(dirname $(readlink -f $0))/nodes.sh
user() { $as_user "$@"; }
. $scripts/slurm.sh
in_job="$as_user salloc -Q -N 3"
launch="lattice launch -N 3 -n 3 true"
$in_job $in_turns "a first launch against srun" 3 "$launch" "srun -N 3 -n 3 true"
$in_job lattice start -- $in_turns "a launch in lattice start against srun" 3 "$launch" "srun --overlap -N 3 -n 3 true"
