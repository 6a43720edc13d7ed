#!/bin/sh
# check_layers.sh: includes point only downward (docs/design.md), and each vendor header is used in one folder.
# Exit 1 and one line per offence. The allow-list is the architecture: a new arrow needs a reason in the page.
cd "$(dirname "$0")/.." || exit 2

allowed() { # folder -> prefixes that it may include besides itself and include/entrain
    case $1 in
    core|strategies) echo "" ;;
    run|plugin|runtime/net) echo "core" ;;
    config) echo "core run" ;;
    ops|ops/*|models/formats|data) echo "core run plugin ops" ;;
    models) echo "models/formats core run plugin ops" ;;
    remote) echo "core config data" ;;
    runtime/control) echo "core run runtime/net" ;;
    runtime/spec) echo "core plugin ops runtime/net runtime/control" ;;
    runtime/collective) echo "core ops runtime/net runtime/control runtime/spec" ;; # a mesh is that of a run's ranks
    runtime/store) echo "core plugin ops runtime/net runtime/spec" ;;
    runtime/client) echo "core plugin ops runtime/net runtime/control runtime/spec runtime/collective" ;;
    runtime/host) echo "core plugin ops runtime/net runtime/spec runtime/collective runtime/client" ;;
    runtime/sim) echo "core run plugin ops runtime/net runtime/spec runtime/collective runtime/store runtime/client runtime/host" ;;
    runtime/sim/faults) echo "core plugin ops runtime/net runtime/spec runtime/client runtime/store runtime/sim" ;;
    server) echo "core run plugin ops config runtime/net runtime/control runtime/spec runtime/collective runtime/store runtime/client" ;;
    rank) echo "core run ops models/formats data runtime/net runtime/control runtime/spec runtime/collective runtime/store runtime/client runtime/host" ;;
    # worker and its subfolders share one object (worker/worker.h), so arrows between them go both ways.
    worker|worker/*) echo "worker job rank core run plugin ops config models data remote runtime/net runtime/control runtime/spec runtime/collective runtime/store runtime/client runtime/host" ;;
    job) echo "rank core run ops config models data runtime/collective runtime/spec" ;;
    virtual) echo "job rank core run plugin ops config models data runtime" ;;
    conform) echo "core plugin ops runtime/spec runtime/sim" ;;
    report) echo "core run config" ;;
    cli/launcher) echo "core run plugin ops config data runtime" ;;
    cli) echo "cli/launcher report virtual conform core run plugin ops config models data remote runtime" ;;
    *) echo "*" ;;
    esac
}

vendor() { # header -> the folders that may include it
    case $1 in
    oneapi/*|dnnl*) echo "ops/cpu" ;;
    cuda*|cublas*|cudnn*|nccl*) echo "ops/cuda" ;;
    zmq.h|msgpack*) echo "runtime/net" ;;
    openssl/*|isa-l/*) echo "core" ;;
    curl/*|expat.h) echo "remote" ;;
    zlib.h) echo "data" ;;
    yaml.h) echo "config" ;;
    esac
}

bad=0
offence() { echo "$1"; bad=1; }
for folder in core run plugin config models models/formats data remote ops ops/ref ops/cpu ops/cuda runtime/net runtime/control runtime/spec \
    runtime/collective runtime/store runtime/client runtime/host runtime/sim runtime/sim/faults server rank worker worker/gpu worker/parallel job virtual conform report cli/launcher cli strategies; do
    for file in "$folder"/*.c "$folder"/*.h "$folder"/*.cu "$folder"/*.cuh; do
        [ -e "$file" ] || continue
        for path in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file"); do
            case $path in
            ../*|./*) offence "$file: relative include \"$path\"; write its path from the root" ; continue ;;
            entrain/*) continue ;;
            plugin/elf_file.h) [ "$folder" = plugin ] || offence "$file: \"$path\" is private to plugin" ;;
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
            if sed 's|"[^"]*"||g' "$file" | grep -nE '(^|[^a-z_.>])(exit|abort) *\(' | grep -v '^\S*: *\*' | grep -vE '_exit' >/dev/null; then
                offence "$file: exit or abort outside main.c"
            fi ;;
        esac
    done
done
[ $bad = 0 ] && echo "layers: every arrow points down"
exit $bad
