# Entrain.cmake: functions that keep the CMakeLists.txt of each folder at three to eight lines.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(CURL IMPORTED_TARGET libcurl>=7.85) # object storage (remote/); `transfer` needs these two
pkg_check_modules(EXPAT IMPORTED_TARGET expat)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)

# msgpack-c: Debian 13 renamed the library, and its pkg-config file lacks the folder of headers: search directly.
find_path(MSGPACK_INCLUDE_DIR msgpack.h)
find_library(MSGPACK_LIBRARY NAMES msgpackc msgpack-c)
if(NOT MSGPACK_INCLUDE_DIR OR NOT MSGPACK_LIBRARY)
  message(FATAL_ERROR "msgpack-c was not found: apt-get install libmsgpack-dev (Debian 12) or libmsgpack-c-dev (Debian 13)")
endif()
add_library(en_msgpack INTERFACE)
target_include_directories(en_msgpack SYSTEM INTERFACE ${MSGPACK_INCLUDE_DIR})
target_link_libraries(en_msgpack INTERFACE ${MSGPACK_LIBRARY})

add_library(en_flags INTERFACE)
# -ffp-contract=off: a fused multiply-add would round once where another rank rounds twice, and results would no
# longer be equal byte for byte. -fno-trapping-math lets gcc vectorise the max in pooling (see ops/).
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
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:-O0;-g1;-finstrument-functions>") # no inlining, and hooks in every function
endif()
if(EN_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>) # the libraries report coverage to the fuzzer
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

# en_embed(report page.css): the files as texts in en_report, each a 0-terminated `const char eni_page_css[]`.
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

# The version that programs print and ranks compare (core/version.h).
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

# en_plugin(ring SOURCES ring.c): a strategy or device as a .so in the build folder's plugins/; it links to none of our libraries.
function(en_plugin name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} MODULE ${A_SOURCES})
  target_link_libraries(${name} PRIVATE en_flags ${A_DEPS})
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
endfunction()

# ctest has three slots per core (tools/test.sh). A test takes 1 where it waits more than it computes, 2 where it keeps a
# core busy, and 3 where it keeps several busy. None takes more, since ctest starts what fits into the slots that are
# free: a wide test would wait until no narrow one is left, and then run alone. A folder sets EN_SLOTS for its tests.
set(EN_SLOTS 1)
function(en_slots slots)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS ${slots})
endfunction()

# en_lasts(60 system_kill ..): about so many seconds. ctest starts the longest tests first, and knows no times in a fresh
# build folder.
function(en_lasts seconds)
  set_tests_properties(${ARGN} PROPERTIES COST ${seconds})
endfunction()

# Tests. A folder's tests are one executable, build/test/test_FOLDER, which runs the test named by its first argument:
# `build/test/test_core core_rng`. Each is a separate test in ctest.
#
# en_test(core_rng SOURCES test_rng.c DEPS en_core LABELS unit TIMEOUT 10 ARGS ..): a cmocka program in test_rng.c. Its
# main() is renamed, and the executable's is generated here. Its SOURCES and DEPS apply to the other tests of its folder too.
#   ALONE       a separate executable, test_core_rng: with a malloc, flags or libraries that the others must not have
#   OF NAME     no program: runs the test NAME again, with other ARGS or in another ENV
function(en_test name)
  cmake_parse_arguments(A "ALONE" "TIMEOUT;OF" "SOURCES;DEPS;LABELS;ARGS;ENV" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120) # for hangs; a test takes a second, but longer on a busy machine
  endif()
  if(EN_SANITIZE OR CMAKE_CROSSCOMPILING) # emulated
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 6")
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(program test_${folder})
  set(call ${name})
  if(A_OF)
    set(call ${A_OF})
  endif()
  if(A_ALONE OR (A_OF AND TARGET test_${A_OF}))
    set(program test_${call})
    set(call)
  endif()
  if(NOT A_OF)
    if(NOT TARGET ${program})
      en_test_program(${program})
    endif()
    if(NOT A_ALONE)
      en_test_main(${name} ${A_SOURCES})
    endif()
    target_sources(${program} PRIVATE ${A_SOURCES})
    target_link_libraries(${program} PRIVATE ${A_DEPS})
  endif()
  add_test(NAME ${name} COMMAND ${program} ${call} ${A_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" SKIP_RETURN_CODE 77 ENVIRONMENT "${A_ENV}")
  en_slots(${EN_SLOTS} ${name})
endfunction()

# en_tests(rng clock DEPS en_core): en_test of each, with test_rng.c and test_clock.c as the first source.
function(en_tests)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LABELS;TIMEOUT;ARGS;ENV" ${ARGN})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  foreach(name ${A_UNPARSED_ARGUMENTS})
    en_test(${folder}_${name} SOURCES test_${name}.c ${A_SOURCES} DEPS ${A_DEPS} LABELS ${A_LABELS} TIMEOUT ${A_TIMEOUT}
      ARGS ${A_ARGS} ENV ${A_ENV})
  endforeach()
endfunction()

function(en_test_program program)
  add_executable(${program})
  target_link_libraries(${program} PRIVATE en_flags cmocka)
  target_compile_definitions(${program} PRIVATE EN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" EN_BUILD_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
endfunction()

# Renames the main() of `source` to NAME_main(), which the folder's executable calls.
function(en_test_main name source)
  file(STRINGS ${source} main REGEX "^int main\\(")
  if(main MATCHES "\\(void\\)")
    set(takes "void")
    set(gets "")
  else()
    set(takes "int argc, char **argv")
    set(gets "argc - 1, argv + 1")
  endif()
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-Dmain(...)=${name}_main(__VA_ARGS__)")
  get_property(declared DIRECTORY PROPERTY EN_TESTS_DECLARED)
  if(NOT declared) # the first of this folder
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    target_sources(test_${folder} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/tests.c)
    target_compile_options(test_${folder} PRIVATE "SHELL:-include ${CMAKE_CURRENT_BINARY_DIR}/tests.h")
    cmake_language(DEFER CALL en_test_driver)
  endif()
  set_property(DIRECTORY APPEND_STRING PROPERTY EN_TESTS_DECLARED "int ${name}_main(${takes});\n")
  set_property(DIRECTORY APPEND_STRING PROPERTY EN_TESTS_CALLED
    "    if (strcmp(name, \"${name}\") == 0) return ${name}_main(${gets});\n")
endfunction()

# Generates tests.h and tests.c of this folder, once all of its tests are known.
function(en_test_driver)
  get_property(EN_DECLARED DIRECTORY PROPERTY EN_TESTS_DECLARED)
  get_property(EN_CALLED DIRECTORY PROPERTY EN_TESTS_CALLED)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/tests.h.in ${CMAKE_CURRENT_BINARY_DIR}/tests.h @ONLY)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/tests.c.in ${CMAKE_CURRENT_BINARY_DIR}/tests.c @ONLY)
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

# en_group(units tests WITHOUT tests/system): a target that builds all targets of the folder tests except those of tests/system.
function(en_group name folder)
  cmake_parse_arguments(A "" "WITHOUT" "" ${ARGN})
  en_targets_below(${CMAKE_SOURCE_DIR}/${folder} found)
  if(A_WITHOUT)
    en_targets_below(${CMAKE_SOURCE_DIR}/${A_WITHOUT} left_out)
    list(REMOVE_ITEM found ${left_out})
  endif()
  add_custom_target(${name})
  add_dependencies(${name} ${found})
endfunction()
