# shellcheck shell=bash
hostile() {
    local uid=$1; shift
    setsid setpriv --reuid $uid --regid 65534 --clear-groups perl -MSocket=:all -e '
        my ($deed, $count, @to) = @ARGV; $SIG{PIPE} = "IGNORE";
        my ($family, $to) = @to == 1 ? (PF_UNIX, pack_sockaddr_un($to[0])) : (PF_INET, pack_sockaddr_in($to[1], inet_aton($to[0])));
        sub opened { socket(my $socket, $family, SOCK_STREAM | SOCK_NONBLOCK, 0) or return; connect($socket, $to); return $socket }
        if ($deed eq "storm") { for (2..$count) { fork or last } opened() while 1 }
        my @open;
        while (1) {
            for (0..$count - 1) {
                my $open = $open[$_];
                $open[$_] = opened() if !$open or defined(recv($open, my $got, 1, MSG_PEEK | MSG_DONTWAIT)) && $got eq "";
            }
            $| = 1; print "$count\n"; select(undef, undef, undef, 0.2);
        }' "$@" >hostile.$uid 2>&1 & strangers+=($!)
    until [ -s hostile.$uid ] || [ "$1" = storm ]; do sleep 0.05; done
}
trap 'for pid in ${strangers[@]}; do kill -KILL -- -$pid; done' EXIT
# Runs words twenty times; prints how many succeeded, and what the others reported.
twenty() { local good=0; for _ in {1..20}; do "$@" >said 2>&1 && good=$((good + 1)) || cat said >&2; done; echo "$good of 20"; }
cd "$LATTICE_DEV_CLUSTER"; chmod 755 .; ulimit -n 4096
