# Keeps files on this node for as long as standard input lasts, which begins with what is in them: of each file frames, a number of bytes on
# a line and then these bytes, up to a number that is 0.
# $1: the command that unpacks a file, if they are packed; then three words for each thing:
#   directory PATH -        a directory
#   file PATH MODE          a file
#   same-file PATH MODE     a file; one that is there already stays, if it has the same contents
# With new- before it, a thing that there must not be yet. Others may have been made by another node, where nodes share directories.
unpack=$1 part='' moved='' made=0 kept='' sums=''
shift
things=$(($# / 3))

# Removes what was made, the last thing first.
undo() {
    # A signal may come, and end mv, between the move and the count.
    [ -z "$moved" ] || [ -e "$part" ] || rm -f -- "$moved"
    [ -z "$part" ] || rm -f -- "$part"
    while [ $made -gt 0 ]; do
        thing $((made - 1)) "$@"
        case "$kind $kept " in
        directory* | new-directory*) rmdir -- "$path" 2>/dev/null ;;
        *" $made "*) ;;
        *) rm -f -- "$path" ;;
        esac
        made=$((made - 1))
    done
}
trap 'undo "$@"' EXIT
trap 'exit 1' TERM INT HUP
umask 077
# Nothing that somebody else has put there is written to.
set -C

say() {
    echo "$LATTICE_SAYS$*" >&2
}
frames() {
    while read -r bytes; do
        [ "$bytes" -gt 0 ] || return 0
        head -c "$bytes" || return 1
    done
    return 1
}
# What is in the next file.
contents() {
    if [ -n "$unpack" ]; then frames | $unpack; else frames; fi
}
sum() {
    sha256sum | cut -c1-64
}
# Sets kind, path and mode of thing $1, counted from 0, of those behind it.
thing() {
    eval "shift; kind=\${$((3 * $1 + 1))} path=\${$((3 * $1 + 2))} mode=\${$((3 * $1 + 3))}"
}
# Makes a file: $1 its kind, at $2, with mode $3.
make() {
    if [ "$1" = same-file ] && [ -e "$2" ]; then
        own=$(sum <"$2") && sent=$(contents | sum) || return 1
        if [ "$own" = "$sent" ]; then
            kept="$kept $((made + 1))" sums="$sums $sent"
            return
        fi
        say "$2 is there already, and is another one"
        return 1
    fi
    if [ ! -d "${2%/*}/" ] || [ ! -w "${2%/*}/" ]; then
        say "there is no directory ${2%/*}/ that you may write to, for $2"
        return 1
    fi
    part=$2.$LATTICE_NODE
    contents >"$part" && chmod "$3" "$part" && sums="$sums $(sum <"$part")" || return 1
    moved=$2
    mv -f -- "$part" "$2" || return 1
    part=
}

# Before anything is read, so that no other node has made it meanwhile.
number=0
while [ $number -lt $things ]; do
    thing $number "$@"
    case $kind in
    new-*) [ ! -e "$path" ] || { say "$path is there already"; exit 1; } ;;
    esac
    number=$((number + 1))
done
while [ $made -lt $things ]; do
    thing $made "$@"
    case $kind in
    *directory) mkdir -p -- "$path" || exit 1 ;;
    *) make "$kind" "$path" "$mode" || exit 1 ;;
    esac
    made=$((made + 1)) moved=''
done
echo "sums$sums"
cat >/dev/null
