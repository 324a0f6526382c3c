#!/bin/sh
# Copies a store that is in use to a tar archive, and a copy is as good as the store after a crash.
#
#     examples/backup.sh STORE ARCHIVE.tar
#
# Nobody is stopped. All that was pushed or appended before it began is in the archive, unless it
# was settled or deleted by its end. What was pushed, settled or committed while it ran may be in it
# or not: that comes again, as after a crash.
#
# What it relies on: segments are only written at their end, and whatever is torn there is cut by the
# first who opens the copy. So of each log the files there are now are copied, the newest first,
# because the oldest are what may be deleted meanwhile. And what refers to something else is copied
# after it, where its being ahead is harmless, or before, where its being behind is. Hints and what
# can be made anew are left out: index.meta, live, wake/, index/.
set -eu
umask 077

store=$1
archive=$(realpath "$2")
cd "$store"
test -f segue.toml
rm -f "$archive"

add() {
    # 1 says that a file changed or went away meanwhile, which is what files here do.
    find . -type f \( "$@" \) ! -name live ! -name index.meta ! -name '*.new' ! -name '*.deleted' \
        ! -path '*/wake/*' ! -path './index/*' | sort -r |
        tar --append --file="$archive" --no-recursion --sparse --ignore-failed-read \
            --warning=no-file-changed --warning=no-file-removed --files-from=- || test $? -eq 1
}

first='./staging/*'
add -path "$first" -o -name origins.json -o -path './rings/*/ledger/*'
add -path './queues/*/lanes/*.q' -o -path './topics/*.q' -o -path './rings/*/entries/*.q'
add -path './queues/*/ledger/*.q'
add ! \( -path "$first" -o -name origins.json -o -path './rings/*/ledger/*' -o \
    -path './queues/*/lanes/*.q' -o -path './topics/*.q' -o -path './rings/*/entries/*.q' -o \
    -path './queues/*/ledger/*.q' \)
