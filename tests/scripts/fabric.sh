# shellcheck shell=bash
here=$LATTICE_DEV_CLUSTER
# The calls that the manager got, but for tokens and lists.
calls() { sed -nE 's/.*"call":"(create|auth|delete)".*/\1/p' "$here/fabric.log" | tr '\n' ' '; }
# How many services there are on all NICs.
services() { find "$here/nics" -type f -name '[0-9]*' | wc -l; }
services_are() { [ "$(services)" = "$1" ]; }
# Fails, and shows why, unless a command succeeds within a minute; a server that was killed waits half of that for reports.
soon() {
    for attempt in {1..600}; do "$@" && return; sleep 0.1; done
    echo "never: $*" >&2; lattice cxi list >&2; tail -n 40 "$here"/*.log >&2; exit 99
}
nothing_is_held() { [ "$(lattice cxi list --json)" = "[]" ]; }
# Whether the one service there is is in this state, and waits for that node.
waits() { lattice cxi list | grep -q "$1  $2"; }
# Nothing is left with the API server, on a NIC, or at the manager.
all_given_back() {
    soon nothing_is_held
    services_are 0 || { echo "services are left" >&2; find "$here/nics" >&2; exit 98; }
    lattice cxi doctor | grep "in no journal of ours" >&2 && exit 97
    echo "all given back"
}
release() { lattice alloc release "${1:-$LATTICE_ALLOC_ID}" >/dev/null; }
# Gives back what the cluster has from its beginning.
afresh() { soon grep -q "are at hand" "$here/api.log"; release; all_given_back >/dev/null; }
# Kills a daemon; its files are free when it is dead, which may take a moment. Its namespaces stay.
declare -A place
kill_dead() {
    local pid=$(daemon "$1") kind space
    place[$1]=""
    for kind in net mnt:mount uts ipc; do
        cmp -s <(readlink "/proc/$pid/ns/${kind%:*}") <(readlink "/proc/self/ns/${kind%:*}") && continue
        exec {space}<"/proc/$pid/ns/${kind%:*}"
        place[$1]+=" --${kind#*:}=/proc/self/fd/$space"
    done
    kill -KILL "$pid"; soon is_dead "$pid"
}
is_dead() { ! grep -qs '^State:.[^ZX]' "/proc/$1/task/"*/status; }
# Starts a daemon again that was killed: api, node0, ...
again() {
    local program="lattice-agent" before=$(registrations "$1"); [ "$1" = api ] && program="lattice api"
    ${place[$1]:+nsenter ${place[$1]}} env -u LATTICE_API_URL -u LATTICE_ALLOC_ID LATTICE_LOG=${LATTICE_LOG:-info} \
        $program --config "$here/$1.toml" >>"$here/$1.log" 2>&1 &
    echo $! >"$here/$1.pid"
    # The API server may not have missed an agent yet.
    [ "$1" = api ] || soon registered_since "$1" $before
    soon all_up
}
registrations() { grep -c "registered node=" "$here/$1.log"; }
registered_since() { [ "$(registrations "$1")" -gt "$2" ]; }
all_up() { nodes_up "$(ls "$here"/node*.pid | wc -l)"; }
killed() { kill_dead "$1"; again "$1"; }
# Changes the API server's configuration as sed is told.
configure() { sed -i "$1" "$here/api.toml"; killed api; }
# What goes wrong at the manager from now on.
faults() {
    local address=$(sed -n '1s|http://||p' "$here/fabric.log") answer
    asked=$(wc -l <"$here/fabric.log")
    exec 9<>"/dev/tcp/${address%:*}/${address#*:}"
    printf 'POST /faults HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s' "${#1}" "$1" >&9
    read -r answer <&9; exec 9>&-
    [[ $answer = *204* ]] || { echo "faults: $answer" >&2; exit 96; }
}
# An allocation, $alloc, of nodes that had nothing, at a manager that goes wrong.
allocate_with_faults() { afresh; faults "$1"; alloc=$(lattice alloc create -N 2); }
# Whether a call of this kind was spoilt since then.
spoilt() { tail -n +$((asked + 1)) "$here/fabric.log" | grep -q "\"call\":\"$1\".*\"spoilt\":true"; }
