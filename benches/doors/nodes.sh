# Nodes as network namespaces, and a plain user on them; read by ssh.sh and slurm.sh, which run in a `lattice dev-cluster`.
scripts=$(readlink -f $(dirname $0)/../../tests/scripts)
. $scripts/nodes_without_daemons.sh
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
