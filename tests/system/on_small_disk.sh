#!/bin/sh
# on_small_disk.sh FOLDER SIZE COMMAND..: runs COMMAND with a file system of SIZE on FOLDER, and lists what it left there.
# In a mount namespace of its own (unshare -rm). Exit 77 where nothing may be mounted.
folder=$1
size=$2
shift 2
mount -t tmpfs -o "size=$size" tmpfs "$folder" || exit 77
"$@"
code=$?
ls "$folder"
exit $code
