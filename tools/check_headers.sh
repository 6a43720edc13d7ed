#!/bin/sh
# check_headers.sh: each public header compiles alone, as C11 and as C++17, without a warning.
cd "$(dirname "$0")/.." || exit 2
bad=0
for header in include/entrain/*.h; do
    ${CC:-cc} -std=c11 -x c -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Iinclude "$header" || bad=1
    if command -v "${CXX:-c++}" >/dev/null; then
        ${CXX:-c++} -std=c++17 -x c++ -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Iinclude "$header" || bad=1
    else
        echo "SKIP: no C++ compiler: C++17 was not checked"
    fi
done
[ $bad = 0 ] && echo "headers: each compiles alone"
exit $bad
