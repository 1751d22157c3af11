# shellcheck shell=bash
names=$here/names key=$here/key
(umask 077; openssl rand -hex 32 >$key; chown 4712:4712 $key)
chmod 711 $here
server=$(getent hosts node0 | cut -d' ' -f1)
printf '%s\n' "nameserver $server" 'search default.svc.cluster.local svc.cluster.local cluster.local' 'options ndots:5' >$here/resolv.conf
touch $names
for number in $(seq 0 $(($(ls $here/node*.pid | wc -l) - 1))); do
    $enter node$number sh -c "hostname mpi-$number && mount --bind $here/resolv.conf /etc/resolv.conf" || exit
done
$enter node0 $(dirname $(command -v lattice))/dns-stand-in $server $names &
trap "kill $! 2>/dev/null" EXIT
export LATTICE_K8S_PODS='mpi-[0-2].mpi'
pod() {
    local number=$1
    shift
    $run $enter node$number setpriv --reuid 4712 --regid 4712 --clear-groups env -i PATH="$PATH" ${LATTICE_JOIN_TIMEOUT:+LATTICE_JOIN_TIMEOUT=$LATTICE_JOIN_TIMEOUT} \
        ${cpus:+taskset -c $cpus} env LATTICE_K8S_PODS="$LATTICE_K8S_PODS" LATTICE_JOIN_KEY_FILE=${other_key:-$key} "$@"
}
begin() {
    run=exec pod $1 lattice-agent listen ${once:+--once} 2>>$here/pod$1.log &
    pods+=($!)
    known $1
}
known() { echo "$(getent hosts node$1 | cut -d' ' -f1) mpi-$1.mpi.default.svc.cluster.local" >>$names; }
cd /tmp
