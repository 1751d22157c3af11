# shellcheck shell=bash
cd "$LATTICE_DEV_CLUSTER"; chmod 711 .; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
export home=$2; cp "$3" $home/program; cp /bin/bash $home/bash
sed "s|^nobody:.*|nobody:x:65534:65534::$home:$home/bash|" /etc/passwd >${1%/*}/passwd
for node in node0 node1; do nsenter -t $(daemon $node) -m mount --bind ${1%/*}/passwd /etc/passwd || exit; done
alloc=$(lattice alloc create -N 2 --uid 65534) || exit
below() { local child; echo $1; for child in $(pgrep -P $1); do below $child; done; }
watched=$(for name in api node0 node1; do below $(daemon $name); done)
# Thread and user of each that runs already.
for pid in $watched; do for task in /proc/$pid/task/*; do
    echo "${task##*/} $(sed -n 's/^Uid:\t[0-9]*\t\([0-9]*\)\t.*/\1/p' $task/status)"
done; done
strace -ff -y -s 4096 -o $1/trace -e "$CALLS" $(printf ' -p %s' $watched) 2>${1%/*}/watching & strace=$!
for pid in $watched; do until grep -q "Process $pid attached" ${1%/*}/watching; do sleep 0.02; done; done
as_user() { setpriv --reuid nobody --regid nogroup --init-groups env HOME=$home TMPDIR=$home XDG_RUNTIME_DIR=$home LD_LIBRARY_PATH=$home LD_PRELOAD=$home/absent.so lattice launch \
    --alloc $alloc --chdir $home -N 2 "$@"; echo "code $?" >&2; }
echo input >$home/input; chown nobody $home/*
as_user -n 2 --tmpdir --bcast=$home/copy --stdin $home/input --output $home/output $home/bash -c 'read line && touch "$TMPDIR/$line"'
as_user -n 4 --tmpdir $home/program
as_user -n 2 --tmpdir --error $home/errors $home/bash -c 'kill -KILL $$'
as_user -n 2 --tmpdir $home/bash -c '[ $LATTICE_RANK = 1 ] || sleep 1000; kill -KILL $PPID'
as_user -n 2 --tmpdir --timeout 1s $home/bash -c 'sleep 1000 & exec sleep 1000'
as_user -n 2 $home/absent
as_user -n 2 --tmpdir $home/bash -c 'exit 3'
kill $strace; wait $strace
find "$LATTICE_DEV_CLUSTER" -user nobody -o ! -type l -perm -002 ! -type s
echo "cluster $LATTICE_DEV_CLUSTER"
