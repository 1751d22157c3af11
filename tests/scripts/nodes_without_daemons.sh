# shellcheck shell=bash
here=$LATTICE_DEV_CLUSTER
enter=$here/enter
cat >$enter <<END
#!/bin/sh
pid=\$(cat $here/\$1.pid) || exit
shift
exec nsenter --net=/proc/\$pid/ns/net --uts=/proc/\$pid/ns/uts --ipc=/proc/\$pid/ns/ipc --mount=/proc/\$pid/ns/mnt --wdns=\$PWD -- "\$@"
END
chmod +x $enter
# The launches here use the namespaces of the cluster, and not its API server.
unset LATTICE_ALLOC_ID LATTICE_API_URL LATTICE_DEV_CLUSTER ${!HYDRA_*} ${!I_MPI_*} ${!OMPI_MCA_*} ${!PRTE_MCA_*}
PATH=$(dirname $(readlink -f $(command -v lattice))):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The agents that were started on the nodes, and the sleeping ranks.
started_on_nodes() {
    local node
    for node in $here/node*.pid; do
        pgrep --ns $(cat $node) --nslist net -f 'lattice-agent join|^sleep 1000'
    done
}
# `lattice` with what it is given, on node0, whose way to the others is `enter`.
on_node0() { LATTICE_VIA="$enter {host} {command}" "$enter" node0 "$@"; }
