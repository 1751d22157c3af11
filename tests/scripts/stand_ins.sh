# shellcheck shell=bash
home=$here/home; mkdir -p $home/bin; cd $home
as_user="$enter node0 env HOME=$home"
user() { $as_user "$@"; }
stand_in() {
    { echo '#!/bin/bash'; echo "echo $1 \"\$@\" >>$home/calls; enter=$enter home=$home"; cat; } >bin/$1; chmod +x bin/$1
}
export PATH=$home/bin:$PATH
# Started by the daemon of the job: no input, and of the environment what a login has.
stand_in pbs_tmrsh <<'END'
        host=$1; shift
        exec $enter $host env -i HOME=$home PATH=/usr/bin:/bin "$@" </dev/null
END
# As rsh, with the environment of the job.
stand_in blaunch <<'END'
        host=$1; shift
        exec $enter $host "$@"
END
stand_in qrsh <<'END'
        [ "$1 $2" = '-inherit -V' ] || exit 2
        host=$3; shift 3
        exec $enter $host "$@"
END
# Input goes to all.
stand_in flux <<'END'
        case "$1 $2" in
            'hostlist instance') echo 'node[0-2]';;
            'resource list') echo 6;;
            'exec --rank=all') shift 2; tee >(exec $enter node0 "$@") >(exec $enter node1 "$@") | $enter node2 "$@"; wait;;
            *) exit 2;;
        esac
END
