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

# Prints the median times of two commands, each a text, that take turns.
cat >$here/turns <<'END'
#!/bin/bash
turns=${TURNS:-7}
time_of() { local begin=$(date +%s%N); bash -c "$1" </dev/null >/dev/null || echo "failed: $1" >&2; echo $((($(date +%s%N) - begin) / 1000)); }
median() { sort -n | sed -n "$(((turns + 1) / 2))p"; }
time_of "$2" >/dev/null; time_of "$3" >/dev/null
first=() second=()
for turn in $(seq $turns); do first+=($(time_of "$2")); second+=($(time_of "$3")); done
a=$(printf '%s\n' "${first[@]}" | median) b=$(printf '%s\n' "${second[@]}" | median)
echo "$1: $((a / 1000)) ms against $((b / 1000)) ms, $(echo "scale=2; $a / $b" | bc)"
END
chmod +x $here/turns
