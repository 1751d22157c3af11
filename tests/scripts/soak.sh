# shellcheck shell=bash
cd "$LATTICE_DEV_CLUSTER"
lattice=$3
daemons() { daemon api; daemon node0; daemon node1; pgrep -P $(daemon node0) -x lattice-forks; pgrep -P $(daemon node1) -x lattice-forks; }
# Descriptors, threads and children of each daemon; files of the cluster; launches that agents have.
held() {
    local pid
    for pid in $(daemons); do
        echo "$(ls /proc/$pid/fd | wc -l) $(sed -n 's/^Threads:\t//p' /proc/$pid/status) $(pgrep -P $pid | wc -l)"
    done
    find . -not -name '*.log' | wc -l
}
memory() { local pid; for pid in $(daemons); do sed -n 's/^VmRSS:[ \t]*\([0-9]*\) kB/\1/p' /proc/$pid/status; done | tr '\n' ' '; }
# What was begun has ended everywhere, and nothing is more than it was: idle threads end after a while.
at_rest() {
    [ -z "$(pgrep -x soak$$)" ] && paste -d ' ' <(echo "$1") <(held) | awk '{ for (i = 1; i <= NF / 2; i++) if ($(i + NF / 2) > $i) bad = 1 } END { exit bad }'
}
within() { local end=$((SECONDS + $1)); shift; until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done; }
# Launches from which on the API server keeps no more: its table of 1,000 that ended is full, and names of the first, kept for ten minutes, go.
steady() { [ $number -ge 1000 ] && [ $SECONDS -ge 600 ]; }
export TMPDIR=$PWD/tmp; mkdir tmp
program=$PWD/soak$$; cp "$lattice" $program; : >memory; : >err; from=
launch() { timeout 60 lattice launch -n 16 --timeout 40s "$@" >/dev/null 2>err; }
for ((number = 1; number <= $1 || ($1 >= 1000 && number <= ${from:-$number} + 500); number++)); do
    case $((RANDOM % 8)) in
        0) launch bash -c "[ \$LATTICE_RANK = $((RANDOM % 16)) ] && exit 3; exec $program pmi barrier";;
        1) launch bash -c "[ \$LATTICE_RANK = $((RANDOM % 16)) ] && kill -9 \$\$; exec $program pmi exchange";;
        2) lattice launch -n 16 $program pmi barrier --count 1000000 >/dev/null 2>err & sleep 0.0$((RANDOM % 10)); kill -TERM $!; wait $!;;
        3) launch --timeout 1s sleep 100;;
        *) launch $program pmi exchange || { echo "launch $number failed"; cat err; };;
    esac
    [ $number != $2 ] || { sleep 3; before=$(held); }
    [ $((number % 100)) != 0 ] || { echo "memory $number $(memory)"; }
    if steady && [ $((number % 100)) = 0 ]; then
        : ${from:=$number}; echo "$number $(memory)" >>memory
    fi
done
# A launch whose client was killed before it attached ends after 30 s.
within 60 at_rest "$before" || { echo "not as before:"; pgrep -xa soak$$; diff <(echo "$before") <(held); }
# KiB that each daemon has grown by for each launch, from the first line to the last.
tail -n 1 memory | cat <(head -n 1 memory) - | awk '
    NR == 1 { n = $1; for (i = 2; i <= NF; i++) was[i] = $i }
    NR == 2 && $1 > n { for (i = 2; i <= NF; i++) { slope = ($i - was[i]) / ($1 - n); printf "slope %.3f\n", slope; if (slope >= 1) print "it grows" } }'
echo "over"
