# Cuda.cmake: finds NVIDIA's toolkit. Included from the top, because only there can a language be enabled.
#
#   ENTRAIN_CUDA=AUTO   the targets cuda and tests build the cuda device if nvcc and cuDNN are found
#   ENTRAIN_CUDA=ON     missing parts are an error
#   ENTRAIN_CUDA=OFF    does not search
#
# EN_HAVE_CUDA_HEADERS: the headers are in EN_CUDA_INCLUDE_DIRS (enough for tests/fake_gpu).
# EN_HAVE_CUDA: a working nvcc and the libraries were found too: plugins/device_cuda.so can be built.
#
# To compile for one GPU only, five times as fast: -DCMAKE_CUDA_ARCHITECTURES=90-real
set(ENTRAIN_CUDA AUTO CACHE STRING "the cuda device: AUTO, ON or OFF")
set_property(CACHE ENTRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT ENTRAIN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ENTRAIN_CUDA=${ENTRAIN_CUDA}: expected AUTO, ON or OFF")
endif()
set(EN_HAVE_CUDA OFF)
set(EN_NO_CUDA "ENTRAIN_CUDA=OFF, or a build for the other tests") # the reason, for `make cuda`
set(EN_HAVE_CUDA_HEADERS OFF)
if(ENTRAIN_CUDA STREQUAL OFF)
  return()
endif()

macro(en_no_cuda why)
  if(ENTRAIN_CUDA STREQUAL ON)
    message(FATAL_ERROR "ENTRAIN_CUDA=ON, but ${why}")
  endif()
  set(EN_NO_CUDA "${why}")
  message(STATUS "no cuda device: ${why}")
  return()
endmacro()

get_filename_component(en_cudacxx_bin "$ENV{CUDACXX}" DIRECTORY)
find_program(EN_NVCC nvcc HINTS ${en_cudacxx_bin} ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT EN_NVCC)
  en_no_cuda("nvcc was not found on PATH or in /usr/local/cuda/bin (set CUDACXX)")
endif()
get_filename_component(en_cuda_bin ${EN_NVCC} DIRECTORY)
if(NOT CUDAToolkit_ROOT)
  get_filename_component(CUDAToolkit_ROOT ${en_cuda_bin} DIRECTORY)
endif()
find_package(CUDAToolkit 12.0 QUIET)
if(NOT CUDAToolkit_FOUND)
  en_no_cuda("the CUDA toolkit around ${EN_NVCC} is not complete, or older than 12.0")
endif()
if(NOT TARGET CUDA::cudart_static OR NOT TARGET CUDA::cublasLt)
  en_no_cuda("the CUDA toolkit around ${EN_NVCC} has no cudart_static or no cuBLASLt (for example package libcublas-dev-13-0)")
endif()

# cuDNN and NCCL come with the toolkit, in their own packages, or in a Python wheel, which has only a libcudnn.so with
# a version number. NCCL is loaded when first needed, so only its header matters here.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64)
mark_as_advanced(EN_NVCC CUDNN_INCLUDE_DIR CUDNN_LIBRARY NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
  en_no_cuda("cuDNN 9 was not found (set CUDNN_ROOT)")
endif()
if(NOT NCCL_INCLUDE_DIR)
  en_no_cuda("nccl.h was not found (set NCCL_ROOT)")
endif()
set(EN_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
list(REMOVE_DUPLICATES EN_CUDA_INCLUDE_DIRS)
set(EN_HAVE_CUDA_HEADERS ON)

# These builds do not check kernels, and their flags are not nvcc's.
if(ENTRAIN_CUDA STREQUAL AUTO AND (EN_SANITIZE OR EN_FUZZ))
  return()
endif()

# Turing to Hopper, and PTX, which is compiled for newer GPUs when the library is first loaded. CMake's own values
# (all, native) are wrong for a toolkit newer than CMake.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90 CACHE STRING "GPUs to compile for")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER ${EN_NVCC})
endif()
if(CMAKE_C_COMPILER_LAUNCHER AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()
if(ENTRAIN_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA) # an nvcc that rejects this gcc must not fail the rest
  if(NOT CMAKE_CUDA_COMPILER)
    en_no_cuda("${EN_NVCC} does not compile with this compiler; ENTRAIN_CUDA=ON shows why")
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(EN_HAVE_CUDA ON)
