# Starts of `true` on nodes that ssh reaches, against MPICH's mpiexec over ssh, as a plain user with a real sshd on each node:
#   lattice dev-cluster --nodes 8 -- bash benches/doors/ssh.sh MPIEXEC
mpiexec=$1
. $(dirname $(readlink -f $0))/nodes.sh
ssh=$here/ssh
mkdir -p $ssh $home/.ssh /run/sshd
ssh-keygen -q -t ed25519 -N '' -f $ssh/host && ssh-keygen -q -t ed25519 -N '' -f $home/.ssh/id_ed25519
cp $home/.ssh/id_ed25519.pub $home/.ssh/authorized_keys
address() { getent hosts $1 | cut -d' ' -f1; }
for node in $nodes; do echo "$node,$(address $node) $(cut -d' ' -f1,2 $ssh/host.pub)"; done >$home/.ssh/known_hosts
chown -R 4711:65534 $home
printf '%s\n' "HostKey $ssh/host" 'UsePAM no' 'StrictModes no' 'PidFile none' 'MaxStartups 200' >$ssh/config
for node in $nodes; do $enter $node /usr/sbin/sshd -f $ssh/config -E $ssh/$node.log || exit; done
for node in $nodes; do until grep -q 'Server listening' $ssh/$node.log; do sleep 0.05; done; done
list=$(echo $nodes | tr ' ' ,)
hydra="env -i HOME=$home PATH=/usr/bin:/bin $mpiexec -launcher ssh -hosts $list -n $count true"
$as_user $in_turns "$count nodes, lattice launch --via ssh against mpiexec" $count "lattice launch --via ssh -w $list -n $count true" "$hydra"
$as_user lattice start --via ssh --host $list -- \
    $in_turns "$count nodes, mpiexec in lattice start against mpiexec" $count "$mpiexec -n $count true" "$hydra"
$as_user lattice start --via ssh --host $list -- \
    $in_turns "$count nodes, lattice launch in lattice start against mpiexec" $count "lattice launch true" "$hydra"
