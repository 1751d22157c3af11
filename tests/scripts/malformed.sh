# shellcheck shell=bash
cd "$LATTICE_DEV_CLUSTER"; count=$1 malformed=$2; export exchange="$3 pmi exchange" malformed
# Into the network of the daemons, where that is another one.
network=(); [ "$(readlink /proc/$(daemon api)/ns/net)" = "$(readlink /proc/self/ns/net)" ] || network=(nsenter --net=/proc/$(daemon api)/ns/net)
nobody="setpriv --reuid nobody --regid nogroup --init-groups"
lattice alloc release $LATTICE_ALLOC_ID >/dev/null; export LATTICE_ALLOC_ID=$(lattice alloc create -w 'node[0-1]')
alloc=$(lattice alloc create -w node2 --uid 65534); victim=$($nobody lattice launch --alloc $alloc --chdir / --detach sleep 1000)
memory() { sed -n 's/^VmRSS:[ \t]*\([0-9]*\) kB/\1/p' /proc/$1/status; }
daemons="api node0 node1 node2"
for name in $daemons; do declare before_$name=$(memory $(daemon $name)); done
lattice launch -n 4 bash -c "until [ -e $PWD/stop ]; do :; sleep 0.05; done; exec $exchange" >undisturbed 2>&1 & undisturbed=$!
until [ "$(lattice launches --json | field launch_id | wc -l)" = 2 ]; do sleep 0.05; done
# The address of a daemon.
port_of() { sed -nE 's/^listen = \[?"([^"]*)".*/\1/p' $1.toml; }
# Calls of these services, to a daemon that must be this one, by these certificates.
calls() { "${network[@]}" $malformed $count 7 calls $(port_of $1) lattice:///$2 pki/$3 "$4" "$alloc $victim node0 node2 sleep $(port_of node2)"; }
# Launches of four attackers each, until so many frames are sent; the words say to which server, and how they begin to talk to it.
attackers() {
    local round=0 sent=0 running
    while [ $sent -lt $count ]; do
        running=()
        for round in $((round + 1)) $((round + 2)) $((round + 3)); do
            lattice launch -n 4 --timeout 30s bash -c 'exec $malformed 200 '$round'0$LATTICE_RANK $1 sent.'$round'.$LATTICE_RANK ${exchange/ exchange/ --method $2 exchange} <&$PMI_FD' bash "$@" >attack.$round 2>&1 & running+=($!)
        done
        wait "${running[@]}"; sent=$(cat sent.* | awk '{ sum += $1 } END { print sum + 0 }')
        [ $sent -gt 0 ] || { cat attack.*; exit 1; }
    done
    echo "sent enough"
}
