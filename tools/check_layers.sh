#!/bin/sh
# check_layers.sh: includes point downward only (docs/design.md), and each vendor header lives in one folder.
# Exit 1 and one line per offence. The allow-list is the architecture: a new arrow needs a reason there.
cd "$(dirname "$0")/.." || exit 2

allowed() { # folder -> prefixes that it may include, itself and include/entrain apart
    case $1 in
    runtime/core) echo "" ;;
    runtime/net) echo "runtime/core" ;;
    ops*) echo "runtime/core ops" ;;
    config) echo "runtime/core" ;;
    models) echo "runtime/core ops" ;;
    data) echo "runtime/core ops" ;;
    runtime/comm) echo "runtime/core runtime/net ops" ;;
    runtime/sim) echo "runtime/core runtime/comm ops" ;;
    server) echo "runtime/core runtime/net runtime/comm ops config" ;;
    worker) echo "runtime/core runtime/net runtime/comm ops config models data" ;;
    cli) echo "runtime/core runtime/net runtime/comm runtime/sim ops config models data" ;;
    strategies) echo "" ;;
    *) echo "*" ;;
    esac
}

vendor() { # header -> the folders that may include it
    case $1 in
    oneapi/*|dnnl*) echo "ops/cpu" ;;
    cuda*|cublas*|cudnn*|nccl*) echo "ops/cuda" ;;
    zmq.h|msgpack*) echo "runtime/net" ;;
    sodium*) echo "runtime/core" ;;
    zlib.h) echo "data" ;;
    yaml.h) echo "config" ;;
    esac
}

bad=0
offence() { echo "$1"; bad=1; }
for folder in runtime/core runtime/net runtime/comm runtime/sim ops ops/ref ops/cpu config models data server worker cli strategies; do
    for file in "$folder"/*.c "$folder"/*.h; do
        [ -e "$file" ] || continue
        for path in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file"); do
            case $path in
            ../*|./*) offence "$file: relative include \"$path\"; write it from the root" ; continue ;;
            entrain/*) continue ;;
            esac
            target=$(dirname "$path"); ok=0
            [ "$target" = "$folder" ] && ok=1
            for prefix in $(allowed "$folder"); do
                case $target in "$prefix"|"$prefix"/*) ok=1 ;; esac
            done
            [ $ok = 1 ] || offence "$file: includes \"$path\", which is not below $folder"
        done
        for header in $(sed -n 's/^ *# *include *<\([^>]*\)>.*/\1/p' "$file"); do
            home=$(vendor "$header")
            [ -z "$home" ] || [ "$home" = "$folder" ] || offence "$file: <$header> belongs in $home only"
        done
        if [ "$folder" != config ] && grep -nE '(^|[^a-z_])(secure_)?getenv *\(' "$file" >/dev/null; then
            offence "$file: getenv belongs in config only"
        fi
        case $file in */main.c) ;; *)
            if grep -nE '(^|[^a-z_.>])(exit|abort) *\(' "$file" | grep -v '^\S*: *\*' | grep -vE '_exit' >/dev/null; then
                offence "$file: exit or abort outside main.c"
            fi ;;
        esac
    done
done
[ $bad = 0 ] && echo "layers: every arrow points down"
exit $bad
