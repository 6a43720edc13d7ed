# Entrain.cmake: what a leaf CMakeLists.txt is made of, so that it stays at three to eight lines.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(CURL IMPORTED_TARGET libcurl) # buckets (remote/); without these two there is no program `transfer`
pkg_check_modules(EXPAT IMPORTED_TARGET expat)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)

# msgpack-c: Debian 13 renamed the library, and its pkg-config file there gives no folder for headers: look by hand.
find_path(MSGPACK_INCLUDE_DIR msgpack.h)
find_library(MSGPACK_LIBRARY NAMES msgpackc msgpack-c)
if(NOT MSGPACK_INCLUDE_DIR OR NOT MSGPACK_LIBRARY)
  message(FATAL_ERROR "msgpack-c was not found: apt-get install libmsgpack-dev (Debian 12) or libmsgpack-c-dev (Debian 13)")
endif()
add_library(en_msgpack INTERFACE)
target_include_directories(en_msgpack SYSTEM INTERFACE ${MSGPACK_INCLUDE_DIR})
target_link_libraries(en_msgpack INTERFACE ${MSGPACK_LIBRARY})

add_library(en_flags INTERFACE)
# -ffp-contract=off: a fused multiply-add would round once where the other rank rounds twice, and
# "byte for byte" would end there. -fno-trapping-math lets gcc vectorise the max in pooling (see ops/).
set(EN_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wpointer-arith -Wno-missing-field-initializers)
set(EN_ARITHMETIC -ffp-contract=off -fno-trapping-math -fno-math-errno)
target_compile_options(en_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${EN_WARNINGS};${EN_ARITHMETIC};-fvisibility=hidden>"
  "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
target_compile_definitions(en_flags INTERFACE _GNU_SOURCE EN_VERSION="${PROJECT_VERSION}")
target_include_directories(en_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
if(EN_WERROR)
  target_compile_options(en_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(EN_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${EN_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all;-g>")
  add_link_options(-fsanitize=${EN_SANITIZE})
endif()
if(EN_TRACE_CALLS)
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:-O0;-g1;-finstrument-functions>") # every function is one, and says so
endif()
if(EN_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>) # the libraries report what they reach, else a fuzzer is blind
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3 -g")

# en_library(core DEPS en_x PkgConfig::Y): a static library en_core of all .c files of this folder, and of its ROOMS.
function(en_library name)
  cmake_parse_arguments(A "" "" "DEPS;ROOMS" ${ARGN})
  set(patterns ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  foreach(room ${A_ROOMS})
    list(APPEND patterns ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.c)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "/main\\.c$")
  add_library(en_${name} STATIC ${sources})
  target_link_libraries(en_${name} PUBLIC en_flags Threads::Threads ${A_DEPS})
endfunction()

# en_embed(report page.css): the texts in en_report, each as `const char eni_page_css[]` with a 0 behind it.
function(en_embed name)
  foreach(text ${ARGN})
    string(MAKE_C_IDENTIFIER "eni_${text}" array)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${array}.c)
    add_custom_command(OUTPUT ${source} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${text} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
      COMMAND ${CMAKE_COMMAND} -D IN=${CMAKE_CURRENT_SOURCE_DIR}/${text} -D OUT=${source} -D NAME=${array}
        -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
    target_sources(en_${name} PRIVATE ${source})
  endforeach()
endfunction()

# The version that programs tell and ranks compare (core/version.h).
set(EN_VERSION_FILE ${CMAKE_BINARY_DIR}/version.c)
add_custom_target(en_version BYPRODUCTS ${EN_VERSION_FILE}
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${CMAKE_SOURCE_DIR} -D BASE=${PROJECT_VERSION} -D OUT=${EN_VERSION_FILE}
    -P ${CMAKE_SOURCE_DIR}/cmake/version.cmake)

# en_program(worker SOURCES main.c DEPS en_x): an executable in the top of the build folder.
function(en_program name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES} ${EN_VERSION_FILE})
  set_source_files_properties(${EN_VERSION_FILE} PROPERTIES GENERATED ON)
  add_dependencies(${name} en_version)
  target_link_libraries(${name} PRIVATE en_flags ${A_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# en_plugin(ring SOURCES ring.c): a strategy or device as a .so in the build folder's plugins/; it links to nothing of ours.
function(en_plugin name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} MODULE ${A_SOURCES})
  target_link_libraries(${name} PRIVATE en_flags ${A_DEPS})
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
endfunction()

# ctest shares out three slots a core (tools/test.sh). What computes takes 3, what waits for others 1. A folder sets
# EN_SLOTS for its tests.
set(EN_SLOTS 2)
function(en_slots slots)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS ${slots})
endfunction()

# en_test(core_rng SOURCES test_rng.c DEPS en_core LABELS unit TIMEOUT 10): a cmocka program, ctest name core_rng.
function(en_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120) # for what hangs; a test takes a second, but not on a machine that others use
  endif()
  if(EN_SANITIZE OR CMAKE_CROSSCOMPILING) # emulated
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 6")
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  add_executable(test_${name} ${A_SOURCES})
  target_link_libraries(test_${name} PRIVATE en_flags cmocka ${A_DEPS})
  target_compile_definitions(test_${name} PRIVATE EN_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    EN_BUILD_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  add_test(NAME ${name} COMMAND test_${name} ${A_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" SKIP_RETURN_CODE 77)
  en_slots(${EN_SLOTS} ${name})
endfunction()

# en_targets_below(FOLDER OUT): all targets of FOLDER and the folders in it.
function(en_targets_below folder found_out)
  get_property(found DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(next ${below})
    en_targets_below(${next} more)
    list(APPEND found ${more})
  endforeach()
  set(${found_out} ${found} PARENT_SCOPE)
endfunction()

# en_group(benches bench): a target that builds whatever the folder bench has.
function(en_group name folder)
  en_targets_below(${CMAKE_SOURCE_DIR}/${folder} found)
  add_custom_target(${name})
  add_dependencies(${name} ${found})
endfunction()
