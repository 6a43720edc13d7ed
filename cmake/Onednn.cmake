# Onednn.cmake: finds a oneDNN that ops/cpu supports. EN_NO_CPU: why the device `cpu` is not built, or empty.
#
#   EN_ONEDNN=AUTO   the device is built if oneDNN 2 or 3 and gcc's OpenMP are found
#   EN_ONEDNN=ON     missing parts are an error
#   EN_ONEDNN=OFF    does not search
set(EN_ONEDNN AUTO CACHE STRING "the cpu device on oneDNN: AUTO, ON or OFF")
set(EN_NO_CPU "it was configured with EN_ONEDNN=OFF")
if(EN_ONEDNN STREQUAL OFF)
  return()
endif()

macro(en_no_cpu why)
  if(EN_ONEDNN STREQUAL ON)
    message(FATAL_ERROR "EN_ONEDNN=ON, but ${why}")
  endif()
  set(EN_NO_CPU "${why}")
  message(STATUS "no cpu device: ${why}")
  return()
endmacro()

# Debian's dnnl-config.cmake requires OpenCL headers that libdnnl-dev does not include, so search directly.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl_version.h)
find_library(DNNL_LIBRARY NAMES dnnl)
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
  en_no_cpu("oneDNN 2 or 3 was not found")
endif()
file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h en_dnnl REGEX "define DNNL_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]*).*" "\\1.\\2" DNNL_VERSION "${en_dnnl}")
if(NOT DNNL_VERSION MATCHES "^[23]\\.")
  en_no_cpu("oneDNN ${DNNL_VERSION} was found, and 2 and 3 are known")
endif()
# OpenMP must be the one that oneDNN loads, gcc's: a second one in the process (clang's) would have separate threads and
# settings that oneDNN does not see.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  find_package(OpenMP COMPONENTS C)
endif()
if(NOT OpenMP_C_FOUND)
  en_no_cpu("it needs gcc and its OpenMP")
endif()
set(EN_NO_CPU "")
