# aarch64.cmake: for Linux on arm64, compiled elsewhere: by Debian's cross compiler, with arm64's libraries in their multiarch
# folders. What CMake tries to run, and the tests, runs where binfmt_misc knows an emulator (tools/root.sh).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig) # this machine's own are not meant
