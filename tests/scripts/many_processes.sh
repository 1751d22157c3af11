# shellcheck shell=bash
holdings() {
    for pid in "$LATTICE_DEV_CLUSTER"/*.pid; do
        daemon=$(<"$pid")
        echo $(ls /proc/$daemon/fd | wc -l) $(ls /proc/$daemon/task | wc -l) $(pgrep -c -P $daemon)
    done
}
lattice launch -n 4 "$1" >/dev/null && lattice launch -n 4 true || exit
sleep 2; holdings >"$LATTICE_DEV_CLUSTER/before"
for number in {1..100}; do
    if [ $((number % 10)) = 0 ]; then program=$1; else program=true; fi
    lattice launch --pmi auto -n 4 $program >/dev/null || exit
done
# What is taken down in the background has time for it. There may be less: a thread that worked at the start ends some seconds later.
cd "$LATTICE_DEV_CLUSTER"
for attempt in {1..100}; do
    holdings >after
    paste before after | awk '{ for (i = 1; i <= 3; i++) if ($(i + 3) > $i) more = 1 } END { exit more }' && exit 0
    sleep 0.1
done
paste before after >&2
exit 9
