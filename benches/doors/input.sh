# Copies of a program on nodes, and input for the ranks of all of them: inside `lattice dev-cluster`, with the lattice that is first in PATH.
#
#   lattice dev-cluster --loopback --nodes 64 -- bash benches/doors/input.sh all
#   lattice dev-cluster --nodes 4 -- bash benches/doors/input.sh slow 12500     the API server sends so many kB/s at most
#
# `all` prints for 20 MB of input how long a launch takes that reads it on every node, the processor time of the API server, and how often it wrote the
# input; `slow` how long a launch takes that is copied to the nodes, as it is and compressed.
what=$1 rate=$2 rounds=${ROUNDS:-3} lattice=$(command -v lattice) || exit
cd "$LATTICE_DEV_CLUSTER" || exit
nodes=$(ls node*.pid | wc -l) api=$(cat api.pid)
now() { date +%s%3N; }
cpu() { awk -v tick="$(getconf CLK_TCK)" '{ print int(($14 + $15) * 1000 / tick) }' "/proc/$api/stat"; }
written() { sed -n 's/^wchar: //p' "/proc/$api/io"; }

all() {
    head -c 20000000 /dev/urandom >input
    for round in $(seq "$rounds"); do
        local time=$(now) cpu=$(cpu) written=$(written)
        lattice launch --stdin all -N "$nodes" -n "$nodes" sh -c 'cat >/dev/null' <input || exit
        echo "$nodes nodes: $(($(now) - time)) ms, API server: $(($(cpu) - cpu)) ms, $((($(written) - written) / 20000000)) copies"
    done
}

slow() {
    cp "$lattice" program
    nsenter -t "$api" -n nft -f - <<END || exit
table inet slow {
    chain out {
        type filter hook output priority 0
        oifname != "lo" limit rate over $rate kbytes/second burst 256 kbytes drop
    }
}
END
    echo "$(wc -c <program) bytes, $(gzip -1c program | wc -c) compressed"
    for round in $(seq "$rounds"); do
        for flag in '' --compress; do
            local time=$(now)
            lattice launch -N "$nodes" -n "$nodes" --bcast $flag ./program --version >/dev/null || exit
            echo "--bcast $flag: $(($(now) - time)) ms"
        done
    done
}

"$what"
