# aarch64.cmake: cross-compiles for Linux on arm64: with Debian's cross compiler and arm64's libraries in their multiarch
# folders. CMake's test programs, and the tests, run if binfmt_misc has an emulator (tools/root.sh).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig) # not this machine's own
