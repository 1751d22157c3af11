# Keeps files on this node for as long as standard input lasts. It begins with a number of bytes on a line and as many bytes of shell words: a
# random word, then three words for each thing. Command lines can be read by other users, and these words cannot.
#   directory PATH -        a directory
#   file PATH MODE          a file
#   same-file PATH MODE     a file; one that is there already stays, if it has the same contents
# With new- before it, a thing that there must not be yet. Others may have been made by another node, where nodes share directories.
# Then comes what is in the files: of each file frames, a number of bytes on a line and then these bytes, up to a number that is 0.
# $1: the command that unpacks a file, if they are packed.
# Each file is written in a directory of this process beside it and moved from there, so that no other user can open or exchange it.
unpack=$1 random='' part='' parts='' checked='' moved='' made=0 kept='' sums='' things=0 me=$(id -u)

# Removes what was made, the last thing first.
undo() {
    # A signal may come, and end mv, between the move and the count.
    [ -z "$moved" ] || [ -e "$part" ] || rm -f -- "$moved"
    [ -z "$part" ] || rm -f -- "$part"
    [ -z "$parts" ] || rmdir -- "$parts" 2>/dev/null
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
umask 077
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
# True if $1 is of the type $2, as ls(1) has it, this user's, and not writable by others; no link to such a file.
is_ours() {
    ls -ldnq -- "$1" | {
        read -r is _ owner _
        case $is in "$2"????[!w]??[!w]*) [ "$owner" = "$me" ] ;; *) false ;; esac
    }
}
# True if no other user can exchange what is in the directory $1. A directory above it may be a colleague's, and that of data ($2), as opposed to
# programs, may be one that colleagues write to.
is_safe() {
    place=$1 use=$2
    real=$(cd -P -- "$place" && pwd -P) || return 1
    own_group=none
    [ "$(id -gn 2>/dev/null)" != "$(id -un 2>/dev/null)" ] || own_group=$(id -g)
    set -- / "$real"
    for above in "$place" "$real"; do
        while above=${above%/*} && [ -n "$above" ]; do set -- "$@" "$above"; done
    done
    for at in "$@"; do
        ls -ldnq -- "$at" | holds_safely "$at" || return 1
    done
}
# True for a line of ls(1) about the directory $1, or a link, if others cannot exchange what it holds.
holds_safely() {
    read -r is _ owner group _
    case $is in
    # A link is as good as its owner; the directory that it leads to is among the others.
    l*) [ "$owner" = 0 ] || [ "$owner" = "$me" ] || return 1 ;;
    ????????w[!tT]*) return 1 ;;
    esac
    [ "$1" = "$real" ] && [ "$use" = program ] || return 0
    [ "$owner" = 0 ] || [ "$owner" = "$me" ] || return 1
    case $is in
    ?????w???[tT]*) ;;
    # With an access control list these are the rights of all that it names.
    ?????w????+) return 1 ;;
    ?????w*) [ "$group" = "$own_group" ] || return 1 ;;
    esac
}
# Prepares the directory $1 for files of the kind $2.
prepare() {
    [ "$1 $2" != "$checked" ] || return 0
    if [ ! -d "$1/" ] || [ ! -w "$1/" ]; then
        say "there is no directory $1/ that you may write to, for $path"
        return 1
    fi
    use=program
    [ "$2" != same-file ] || use=data
    if ! is_safe "$1/" $use; then
        say "other users may write to $1/ or to a directory above it, and could exchange $path"
        return 1
    fi
    checked="$1 $2"
}
# Makes a file: $1 its kind, at $2, with mode $3.
make() {
    if [ "$1" = same-file ] && { [ -e "$2" ] || [ -L "$2" ]; }; then
        # Nothing is opened that another user can exchange for a FIFO.
        owner=$(ls -ldnqL -- "$2" | { read -r _ _ owner _ && echo "$owner"; })
        if [ ! -f "$2" ] || { [ "$owner" != 0 ] && [ "$owner" != "$me" ]; }; then
            say "$2 is there already, and is no file of yours"
            return 1
        fi
        own=$(sum <"$2") && sent=$(contents | sum) || return 1
        if [ "$own" = "$sent" ]; then
            kept="$kept $((made + 1))" sums="$sums $sent"
            return
        fi
        say "$2 is there already, and is another one"
        return 1
    fi
    prepare "${2%/*}" "$1" || return 1
    parts=${2%/*}/.lattice-$random.$LATTICE_NODE
    mkdir -m 700 -- "$parts" || { parts=''; return 1; }
    part=$parts/part
    contents >"$part" && chmod "$3" "$part" && sums="$sums $(sum <"$part")" || return 1
    moved=$2
    # A directory of that name is not moved into, and a link is replaced.
    mv -f -T -- "$part" "$2" || return 1
    part=''
    rmdir -- "$parts" && parts=''
    is_ours "$2" - || { say "$2 was exchanged"; return 1; }
}

read -r bytes && words=$(head -c "$bytes") && eval "set -- $words" || exit 1
random=$1
shift
things=$(($# / 3))
trap 'undo "$@"' EXIT
trap 'exit 1' TERM INT HUP
# Before anything is read, so that no other node has made it meanwhile.
number=0
while [ $number -lt $things ]; do
    thing $number "$@"
    case $kind in
    new-*) [ ! -e "$path" ] && [ ! -L "$path" ] || { say "$path is there already"; exit 1; } ;;
    esac
    number=$((number + 1))
done
while [ $made -lt $things ]; do
    thing $made "$@"
    case $kind in
    *directory)
        prepare "${path%/*}" "$kind" || exit 1
        # Another node may have made it, where nodes share directories; no other user can make one of this user's.
        mkdir -m 700 -- "$path" 2>/dev/null || is_ours "$path" d || { say "cannot make the directory $path"; exit 1; }
        ;;
    *) make "$kind" "$path" "$mode" || exit 1 ;;
    esac
    made=$((made + 1)) moved=''
done
echo "sums$sums"
cat >/dev/null
