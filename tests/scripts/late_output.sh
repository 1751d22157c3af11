# shellcheck shell=bash
shopt -u patsub_replacement
D=$(mktemp -d); trap 'rm -rf "$D"' EXIT; export D
cat >$D/log.py <<'PROGRAM'
import logging, multiprocessing, os, signal, sys, time
def work(queue):
    logging.basicConfig(stream=sys.stdout, format="x: %(message)s", level=logging.INFO)
    for line in iter(queue.get, None):
        logging.info(line)
if __name__ == "__main__":
    queue = multiprocessing.SimpleQueue()
    child = multiprocessing.Process(target=work, args=(queue,))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child.start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in range(20):
        queue.put("line %d" % number)
    queue.put(None)
    if sys.argv[1] == "term":
        open(os.environ["D"] + "/go", "w").close()
        time.sleep(1000)
    if sys.argv[1] == "abort":
        os.write(30, b"cmd=init pmi_version=1 pmi_subversion=1\n")
        os.read(30, 1000)
        os.write(30, b"cmd=abort exitcode=7\n")
        time.sleep(1000)
    os._exit({"good": 0, "bad": 3}[sys.argv[1]])
PROGRAM
lines='for i in {1..20}; do echo line $i; done'
wait_for() { echo "until [ -s $D/$1 ]; do sleep 0.01; done"; }
filter="bash $D/filter"
cat >$D/filter <<'PROGRAM'
while read -r line; do
    all+="x: $line"$'\n'
    [ "$line" != "line 20" ] || echo >$D/seen
done
printf %s "$all"
PROGRAM
declare -A kind=(
    [stdout]="exec > >($filter); $lines; $(wait_for seen); END"
    [stderr]="exec 2> >($filter >&2); { $lines; } >&2; $(wait_for seen); END"
    [pipeline]="set -o pipefail; { $lines; $(wait_for seen); END; } | $filter | cat"
    [tee]="exec > >($filter | tee -a $D/file); $lines; $(wait_for seen); END"
    [python]="exec python3 $D/log.py NAME"
    [daemon]="(setsid bash -c 'trap \"\" HUP TERM; echo >$D/seen; sleep 0.1; for i in {1..20}; do echo x: line \$i; done' &); $(wait_for seen); END"
    [endless]="$lines; sleep 1000 & END"
    [apart]="$lines; sleep 1000 >/dev/null 2>&1 & END")
declare -A end=(
    [good]="exit 0" [bad]="exit 3" [term]="touch $D/go; sleep 1000"
    [abort]="printf 'cmd=init pmi_version=1 pmi_subversion=1\n' >&30; read -r l <&30; printf 'cmd=abort exitcode=7\n' >&30; exit 7")
check() {
    rm -f $D/seen $D/go
    program=${kind[$1]//NAME/$2}
    # On a busy machine a process needs more than the second that it has by default.
    flags=; [ $1 = endless ] || flags=--output-end=5s
    $LAUNCH $flags bash -c '[ $LATTICE_RANK = 0 ] || exit 0; eval "$0"' "${program//END/${end[$2]}}" >$D/out 2>$D/err & launch=$!
    if [ $2 = term ]; then until [ -e $D/go ]; do sleep 0.01; done; kill -TERM $launch; fi
    wait $launch; code=$?
    echo $1 $2: $(cat $D/out $D/err | grep -c 'line [0-9]*$') lines, code $code $(grep -o 'still held the output of rank 0' $D/err)
}
for round in $(seq ${ROUNDS:-1}); do
    for k in stdout stderr pipeline tee python daemon; do for e in good bad abort term; do check $k $e; done; done
    check endless good; check endless bad; check apart good; check apart bad
done
