# shellcheck shell=bash
cd "$LATTICE_DEV_CLUSTER"
nodes=$2
# No other process of this machine has the name.
name=steps$$; program=$PWD/$name; cp "$1" $program
of_cluster() { sed -i '1i lease = 10' api.toml; [ -z "$settings" ] || sed -i "1i $settings" api.toml; }
# Fails when the words that are given do not succeed within so many seconds.
within() { local end=$((SECONDS + $1)); shift; until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.05; done; }
with_variable() { grep -lzxs "$1" /proc/[0-9]*/environ >/dev/null; }
nothing_left() { flock -n lock true && ! pgrep -x $name >/dev/null && ! with_variable CELL=$cell; }
rank_there() { pgrep -x $name >/dev/null; }
ended() { ! kill -0 $launch 2>/dev/null; }
stepped() { grep -qs "step $1" out; }
all_up() { [ "$(lattice nodes --json | field state | sort | uniq -c | tr -d ' \n')" = ${nodes}up ]; }
# That a client has come back is no cause.
causes() { grep '^lattice: ' err | grep -vE '^lattice: (warning|note|try): |: the connection to the API server broke|: attached again'; }
hide='exec 9<>lock; flock -s 9; env -i setsid sleep 1000 >/dev/null 2>&1 & exec "$@"'
cell() {
    local phase=$1 code bad=
    cell=$$.$SECONDS.$RANDOM struck=
    rm -f go; : >out; : >err; : >lock
    CELL=$cell lattice launch -n $((nodes * 2)) --timeout 60s bash -c "$hide" bash "$program" "$PWD/go" >out 2>err & launch=$!
    case $phase in
        start) sleep 0.0$((RANDOM % 10));;
        steps) within 20 stepped 5 || bad="no steps before the fault";;
        end) within 20 stepped 5; touch go; sleep 0.0$((RANDOM % 5));;
    esac
    fault $phase; mend; touch go
    within 30 ended || { bad="hangs"; kill -KILL $launch; }
    wait $launch; code=$?
    [[ " $(wanted $phase) " = *" $code "* ]] || bad="$bad code $code"
    case $code in
        0) [ -z "$(causes)" ] || bad="$bad a cause without a failure";;
        *) [ $(causes | wc -l) = 1 ] || bad="$bad $(causes | wc -l) causes"
           causes | grep -qE "^lattice: $(cause $phase)" || bad="$bad not the cause: $(cause $phase)";;
    esac
    within 5 nothing_left || bad="$bad survivors"
    within 15 all_up || bad="$bad nodes are not up: $(lattice nodes --json | field state | tr '\n' ' ')"
    # The loss of a node is the end of its allocation.
    [ "$(lattice alloc show $LATTICE_ALLOC_ID --json | field state)" = running ] || {
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null 2>&1
        LATTICE_ALLOC_ID=$(timeout 20 lattice alloc create -N $nodes --wait) || bad="$bad no allocation"
    }
    lattice launch -n $((nodes * 2)) --timeout 20s true 2>>err || bad="$bad the next launch fails"
    echo "$phase: ${bad:-as it should}"
    [ -z "$bad" ] || { cat err; tail -n 3 api.log node*.log; } >&2
}
mend() { :; }
cause() { echo "there should be none"; }

# A variable of a process, a rank's process by its number, and what its messages call it.
variable() { tr '\0' '\n' </proc/$1/environ 2>/dev/null | sed -n "s/^$2=//p"; }
rank_of() { pgrep -x $name | sort -n | $1 -1; }
# The process of a rank on the node that is named, and the one that began it.
rank_on() { local pid; for pid in $(pgrep -x $name); do [ "node$(variable $pid LATTICE_NODE)" = $1 ] && echo $pid && break; done; }
session_on() {
    local parent=$(ps -o ppid= -p $(rank_on $1) 2>/dev/null)
    [ "$(ps -o comm= -p $parent 2>/dev/null)" = lattice-session ] && echo $parent
}
forks_of() { pgrep -P $(daemon $1) -x lattice-forks; }
# One that only waits to be reaped is gone.
gone() { ! grep -qs '^State:.[^ZX]' /proc/$1/task/*/status; }
