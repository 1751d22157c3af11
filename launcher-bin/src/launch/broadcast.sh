# Keeps a file on this node for as long as standard input lasts.
# $1: the file, $2: its directory, if that is to be made and removed as well, $3: number of bytes that standard input begins with
file=$1 dir=$2 part=$1.$LATTICE_NODE made=
clean() { rm -f -- "$part" "$made"; [ -z "$dir" ] || rmdir -- "$dir" 2>/dev/null; }
trap clean EXIT
trap 'exit 1' TERM INT HUP
umask 077
# Nothing that somebody else has put there is written to.
set -C
if [ -n "$dir" ]; then
    mkdir -p -- "$dir" || exit 1
elif [ -e "$file" ]; then
    echo "$file is there already" >&2
    exit 1
fi
head -c "$3" >"$part" && chmod 700 "$part" && sum=$(sha256sum <"$part") && made=$file && mv -f -- "$part" "$file" || exit 1
echo "${sum%% *}"
cat >/dev/null
