# Nodes as network namespaces, and a plain user on them; read by ssh.sh and slurm.sh, which run in a `lattice dev-cluster`.
here=$LATTICE_DEV_CLUSTER
enter=$here/enter
cat >$enter <<END
#!/bin/sh
pid=\$(cat $here/\$1.pid) || exit
shift
exec nsenter --net=/proc/\$pid/ns/net --uts=/proc/\$pid/ns/uts --ipc=/proc/\$pid/ns/ipc --mount=/proc/\$pid/ns/mnt --wdns=\$PWD -- "\$@"
END
chmod +x $enter
# The cluster lends its namespaces alone.
unset LATTICE_ALLOC_ID LATTICE_API_URL LATTICE_DEV_CLUSTER ${!HYDRA_*} ${!I_MPI_*} ${!OMPI_MCA_*} ${!PRTE_MCA_*}
PATH=$(dirname $(readlink -f $(command -v lattice))):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
nodes=$(cd $here && ls node*.pid | sed 's/.pid//' | sort -V | tr '\n' ' ')
count=$(echo $nodes | wc -w)
home=$here/home
mkdir -p $home
{ cat /etc/passwd; echo "tester:x:4711:65534::$home:/bin/sh"; } >$here/passwd
{ cat /etc/shadow; echo "tester:*:19000:0:99999:7:::"; } >$here/shadow
chown 4711:65534 $home
for node in $nodes; do
    $enter $node sh -c "mount --bind $here/passwd /etc/passwd && mount --bind $here/shadow /etc/shadow" || exit
done
cd $home
as_user="$enter node0 setpriv --reuid 4711 --regid 65534 --clear-groups env HOME=$home USER=tester PATH=$PATH"

# Built beside lattice: cargo build --release -p lattice-benches --bin in_turns
in_turns=$(dirname $(readlink -f $(command -v lattice)))/in_turns
[ -x $in_turns ] || { echo "no $in_turns; build it: cargo build --release -p lattice-benches --bin in_turns" >&2; exit 1; }
