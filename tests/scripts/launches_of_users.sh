# shellcheck shell=bash
cd "$LATTICE_DEV_CLUSTER"; echo "directory $PWD"
kill_agent node0; sed -i '1i metrics = "127.0.0.1:9465"' node0.toml; start_agent node0
restart_api sed -i '1i metrics = "127.0.0.1:9464"' api.toml
keys="pki/ca.key.pem pki/api/key.pem pki/agent-node0/key.pem pki/agent-node1/key.pem"
bash -c 'text=$(cat "$@"); sleep 1000 & echo "planted $$"; wait' bash $keys & planted=$!
lattice alloc release $LATTICE_ALLOC_ID >/dev/null
metrics() { nsenter --net=/proc/$1/ns/net bash -c "exec 3<>/dev/tcp/127.0.0.1/$2; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3"; }
launch_of() {
    local user=$1 canary=$2 alloc launch id pid forks
    until alloc=$(lattice alloc create -N 2 --uid $user 2>/dev/null); do sleep 0.05; done
    # A command has its own environment by right.
    setpriv --reuid $user --regid $user --init-groups env CANARY=$canary lattice launch --alloc $alloc -n 4 \
        lattice pmi barrier --count 100000000 & launch=$!
    id=$(launch_with 4); until lattice status $id | grep -q fence; do sleep 0.05; done
    # The others wait for it, and none of them uses a core.
    kill -STOP $(pid_of_rank $id 0)
    for name in api node0 node1; do echo "daemon $(daemon $name)"; done
    forks=$(pgrep -d, -P $(daemon node0),$(daemon node1)); echo "$forks" | tr , '\n' | sed 's/^/forks /'
    # Other tests have sessions of these users as well.
    for pid in $(pgrep -u $user); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "E2E_MARK=$E2E_MARK" ||
            pgrep -u $user -P "$forks" | grep -qx $pid || continue
        case "$(cat /proc/$pid/comm) $(tr '\0' ' ' </proc/$pid/cmdline)" in
            lattice-session*) echo "session $pid";; *" pmi barrier --count"*launch*|*" launch "*) echo "command $pid";; *) echo "rank $pid";;
        esac
    done
    metrics $(daemon api) 9464 >metrics-api.txt; metrics $(daemon node0) 9465 >metrics-node0.txt
    echo "ready $user"; until [ -e "looked-$user" ]; do sleep 0.05; done
    kill -CONT $(pid_of_rank $id 0); kill -TERM $launch; wait $launch; lattice alloc release $alloc >/dev/null
}
launch_of 65534 canary-of-the-first-user; launch_of 5 canary-of-the-second-user
kill $(pgrep -P $planted) $planted; echo looked
