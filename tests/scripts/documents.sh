# shellcheck shell=bash
shows() { echo "== $1"; lattice "${@:2}" --json; }
id=$(lattice launch --detach --pmi none -n 2 sleep 1000); launch_with 2 >/dev/null
shows nodes nodes; shows nodes nodes -v; shows nodes-topology nodes --topology
shows nodes-topology-launch nodes --topology $id
shows launches launches; shows status status $id; shows top top $id --once; shows stacks stacks $id
shows proctable proctable $id; shows signal signal $id CONT --ranks 0; shows explain-launch explain $id
shows doctor doctor; shows queue queue; shows explain-code explain 139
shows set-list set list; shows set-graph set graph
set=$(lattice set list --json | field set_id | head -1); shows set-ping set ping lattice://$set/0 --count 2
shows cxi-list cxi list; shows cxi-doctor cxi doctor; shows cxi-clean cxi clean --dry-run
shows cancel cancel $id
lattice launch --json --pmi none -n 2 sh -c 'echo hi; exit 3' | sed 's/^/== events\n/'
lattice launch --pmi none -n 1 false; id=$(lattice launches --all --json | field launch_id | tail -1)
shows launches launches --all; shows status status $id; shows explain-launch explain $id
shows alloc alloc show; shows alloc-list alloc list --all; shows alloc alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID
shows alloc alloc create -N 1 --wait; shows batch batch -o /dev/null --wrap true; shows queue queue --all
shows nodes-change nodes drain node1 --reason memory; shows nodes nodes; shows nodes-change nodes resume node1
shows pki pki init "$here/ca"; shows pki pki issue "$here/ca" --admin; shows pki pki revoke "$here/ca" admin
agent_shows() { echo "== agent-cxi-$1"; env -u LATTICE_API_URL lattice-agent cxi "$@" --json --config "$here/node1.toml"; }
agent_shows list; agent_shows doctor; kill_agent node1; agent_shows clean --all --dry-run
true
