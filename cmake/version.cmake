# version.cmake: writes OUT, a C file with the program's version: BASE and, in a git checkout without the tag vBASE, the
# commit. Runs at every build; the file changes only with the commit, so only then are three programs linked again.
execute_process(COMMAND git rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git describe --always --tags --abbrev=12 WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
get_filename_component(source "${SOURCE}" REALPATH)
set(version ${BASE})
# A tarball unpacked inside another project's checkout has no commit.
if(top STREQUAL source AND commit AND NOT commit STREQUAL "v${BASE}")
  set(version "${BASE}+${commit}")
endif()
file(WRITE ${OUT}.new "#include \"core/version.h\"\nconst char eni_version[] = \"${version}\";\n")
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${OUT}.new ${OUT})
file(REMOVE ${OUT}.new)
