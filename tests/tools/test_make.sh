#!/bin/sh
# test_make.sh product|moved|onednn|demo: checks of the Makefile that need no compiler.
#   product   make compiles the programs, plugins and libentrain; tests and benches are for `make tests` alone
#   moved     in a tree that was moved with its build folder every target stops with one sentence, before it builds or installs
#   onednn    make reports a oneDNN of an unknown version, and builds all but the device cpu
#   demo      make demo-resnet makes its Python again where Ctrl-C left it half made, and keeps one that is whole
# Promise: make compiles the product only, and in a tree that was moved every target stops with one sentence.
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
command -v make >/dev/null || { echo "SKIP: there is no make"; exit 77; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
bad() { echo "$*"; exit 1; }

configure() { # SOURCES: a build folder in there, of makefiles
    cmake -S "$1" -B "$1/build" -G 'Unix Makefiles' -DENTRAIN_CUDA=OFF >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

compiled() { # TARGET: the folders of the sources of its objects, or of the texts they are generated from; nothing is run
    make -C "$work/tree/build" -n -k "$1" 2>/dev/null | sed -n 's/.* -o .* -c .*\/tree\/\(build\/\)\{0,1\}\([a-z]*\)\/.*/\2/p' | sort -u | tr '\n' ' '
}

if [ "$1" = demo ]; then # with programs that only log their arguments; pip is ended once for $work/ends
    mkdir -p "$work/path" "$work/build"
    cat >"$work/path/python3" <<END
#!/bin/sh
echo "\$*" >>"$work/asked"
case \$* in
*venv*) mkdir -p "\$3/bin" && cp "$work/path/python3" "\$3/bin/python3" ;;
*pip*) [ ! -e "$work/ends" ] || { rm "$work/ends"; kill -INT 0; sleep 60; } ;;
*make_cifar*) [ ! -e "$work/fails" ] || { rm "$work/fails"; exit 2; }; mkdir "\$3" ;;
esac
END
    printf '#!/bin/sh\n' >"$work/build/entrain"
    chmod +x "$work/path/python3" "$work/build/entrain"
    demo() { PATH=$work/path:$PATH PYTHON= setsid --wait "$top/tools/demo.sh" "$work/build" resnet >"$work/log" 2>&1; }
    touch "$work/ends" "$work/fails"
    demo && bad "Ctrl-C in pip did not end it"
    demo && bad "it went on without photographs"
    demo || bad "it trips over what was left: $(cat "$work/log")"
    [ "$(grep -c venv "$work/asked")" = 2 ] && [ "$(grep -c pip "$work/asked")" = 2 ] || bad "it asked: $(cat "$work/asked")"
    exit 0
fi

mkdir "$work/tree" && cp -r "$top/CMakeLists.txt" "$top/Makefile" "$work/tree" || exit 2
for folder in bench cli cmake config conform core data examples include job models ops plugin rank remote report run runtime server strategies tests tools virtual worker; do
    ln -s "$top/$folder" "$work/tree/$folder" || exit 2
done
configure "$work/tree"

case $1 in
product)
    said=$(compiled all)
    [ "$said" = "cli config conform core data examples job models ops plugin rank remote report run runtime server strategies virtual worker " ] || bad "make compiles: $said"
    said=$(compiled tests)
    case $said in *tests*) ;; *) bad "make tests compiles: $said" ;; esac ;;
moved)
    mv "$work/tree" "$work/other"
    for target in all tests cuda install tidy; do
        said=$(make -C "$work/other" --no-print-directory -s "$target" PREFIX="$work/prefix" 2>&1) && bad "make $target: $said"
        case $said in
        *"$work/tree/build"*"$work/other"*"rm -rf build"*) ;;
        *) bad "make $target: $said" ;;
        esac
    done
    [ ! -e "$work/prefix" ] || bad "something was installed" ;;
onednn)
    mkdir -p "$work/include/oneapi/dnnl" && touch "$work/libdnnl.so"
    printf '#define DNNL_VERSION_%s\n' 'MAJOR 4' 'MINOR 1' 'PATCH 0' >"$work/include/oneapi/dnnl/dnnl_version.h"
    rm -rf "$work/tree/build"
    said=$(make -C "$work/tree" --no-print-directory -s configure \
        CMAKE_FLAGS="-DENTRAIN_CUDA=OFF -DDNNL_INCLUDE_DIR=$work/include -DDNNL_LIBRARY=$work/libdnnl.so") || bad "make failed: $said"
    case $said in *oneDNN*4.1*) ;; *) bad "make said: $said" ;; esac
    [ "$(echo "$said" | wc -l)" = 1 ] || bad "make said: $said"
    said=$(compiled all)
    case $said in *ops*) ;; *) bad "make compiles: $said" ;; esac
    ! make -C "$work/tree/build" -n -k all 2>/dev/null | grep -q device_cpu || bad "it builds the device cpu all the same" ;;
*) bad "usage: test_make.sh product|moved|onednn|demo" ;;
esac
