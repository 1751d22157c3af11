# shellcheck shell=bash
# The values of a field in the JSON on standard input, one on each line.
field() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?\$/\1/p"; }
# The process number of a daemon: api, node0, node1, ...
daemon() { cat "$LATTICE_DEV_CLUSTER/$1.pid"; }
# The id of the one launch there is, as soon as all of so many ranks run.
launch_with() {
    local id
    until id=$(lattice launches --json | field launch_id) && [ "$id" ] &&
        [ "$(lattice proctable "$id" --json | field pid | wc -l)" = "$1" ]; do sleep 0.05; done
    echo "$id"
}
# Kills the API server, runs the words that are given, and starts another one on the same state, in the same network.
restart_api() {
    local pid=$(daemon api) network=()
    if [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; then
        exec {network_fd}</proc/$pid/ns/net
        network=(nsenter --net=/proc/self/fd/$network_fd)
    fi
    kill -KILL $pid
    # Its last thread holds its state.
    while grep -qs '^State:.[^ZX]' /proc/$pid/task/*/status; do sleep 0.02; done
    "$@"
    "${network[@]}" lattice api --config "$LATTICE_DEV_CLUSTER/api.toml" 2>>"$LATTICE_DEV_CLUSTER/api.log" &
    echo $! >"$LATTICE_DEV_CLUSTER/api.pid"
    until nodes_up $(ls "$LATTICE_DEV_CLUSTER"/node*.pid | wc -l); do sleep 0.05; done
}
# Keeps the namespaces of an agent for the next one.
keep_namespaces() {
    local pid=$(daemon $1) kind fd
    for kind in net mnt uts ipc; do
        [ "$(readlink /proc/$pid/ns/$kind)" = "$(readlink /proc/self/ns/$kind)" ] && continue
        exec {fd}</proc/$pid/ns/$kind
        printf -v "namespaces_$1" '%s --%s=/proc/self/fd/%s' "$(eval echo \$namespaces_$1)" ${kind/mnt/mount} $fd
    done
}
# Ends an agent, by SIGKILL or the signal that is named, and waits until it is gone. Its namespaces are kept for the next one.
kill_agent() {
    local pid=$(daemon $1)
    keep_namespaces $1
    kill -${2:-KILL} $pid
    while grep -qs '^State:.[^ZX]' /proc/$pid/task/*/status; do sleep 0.02; done
}
# Starts an agent where one was killed, of the program that is named or the same one, and waits until it has registered.
start_agent() {
    local program=${2:-lattice-agent} enter=$(eval echo \$namespaces_$1) log="$LATTICE_DEV_CLUSTER/$1.log" before
    before=$(grep -c registered "$log")
    ${enter:+nsenter $enter} env -u LATTICE_API_URL LATTICE_LOG=info $(command -v "$program") \
        --config "$LATTICE_DEV_CLUSTER/$1.toml" 2>>"$log" & echo $! >"$LATTICE_DEV_CLUSTER/$1.pid"
    unset namespaces_$1
    until [ $(grep -c registered "$log") -gt $before ]; do sleep 0.02; done
}
# Whether so many nodes are up.
nodes_up() { [ "$(lattice nodes --json 2>/dev/null | field state | grep -c up)" = "$1" ]; }
# The process number of a rank of a launch.
pid_of_rank() { lattice proctable "$1" --json | awk -v wanted=$2 '/"rank":/ { rank = $2 + 0 } /"pid":/ && rank == wanted { print $2 + 0 }'; }
