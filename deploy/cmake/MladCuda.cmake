# CUDA: finding nvcc and cuda.h, and the rules that make kernel files. Nothing links a CUDA library.
#
#   MLAD_HAVE_CUDA       nvcc and cuda.h were found: kernels, kernels/host and the CUDA backend are built
#   mlad_cuda_headers    cuda.h for C sources
#   mlad_kernel(OUTPUT name.cubin|name.ptx SOURCE file.cu ARCH sm_90a|compute_80 [DEFINES ...] [CHECK sm_80 ...])
#       makes a kernel file in the kernels' folder of the build tree and, under kernels/log, ptxas's report of it (for
#       PTX: one for each architecture of CHECK). tests/lint/resources.py judges the reports: no spill, no stack.

set(MLAD_HAVE_CUDA FALSE)
set(MLAD_KERNELS_DIR "${PROJECT_BINARY_DIR}/kernels")
if(NOT MLAD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MLAD_CUDA=${MLAD_CUDA}: AUTO, ON or OFF")
endif()

if(MLAD_CUDA STREQUAL "OFF")
  set(MLAD_CUDA_SUMMARY "not looked for")
else()
  find_program(MLAD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(MLAD_NVCC)
    file(REAL_PATH "${MLAD_NVCC}" mlad_nvcc_path)
    cmake_path(GET mlad_nvcc_path PARENT_PATH mlad_cuda_bin)
    cmake_path(GET mlad_cuda_bin PARENT_PATH mlad_cuda_root)
    find_path(MLAD_CUDA_INCLUDE_DIR cuda.h
      HINTS "${mlad_cuda_root}" "${mlad_cuda_root}/targets/x86_64-linux" ENV CUDA_HOME PATH_SUFFIXES include)
    execute_process(COMMAND "${MLAD_NVCC}" --version OUTPUT_VARIABLE mlad_nvcc_text ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" mlad_nvcc_text "${mlad_nvcc_text}")
    set(MLAD_CUDA_VERSION "${CMAKE_MATCH_1}")
  endif()
  if(MLAD_NVCC AND MLAD_CUDA_INCLUDE_DIR AND MLAD_CUDA_VERSION VERSION_GREATER_EQUAL 12.4)
    set(MLAD_HAVE_CUDA TRUE)
    set(MLAD_CUDA_SUMMARY "nvcc ${MLAD_CUDA_VERSION}")
    add_library(mlad_cuda_headers INTERFACE)
    target_include_directories(mlad_cuda_headers SYSTEM INTERFACE "${MLAD_CUDA_INCLUDE_DIR}")
  elseif(MLAD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MLAD_CUDA=ON: nvcc 12.4 or newer with cuda.h was not found (CUDA_HOME names its folder)")
  elseif(MLAD_NVCC)
    set(MLAD_CUDA_SUMMARY "nvcc ${MLAD_CUDA_VERSION} found, not used: older than 12.4, or without cuda.h")
  else()
    set(MLAD_CUDA_SUMMARY "nvcc not found")
  endif()
endif()

set(MLAD_KERNEL_FILES "" CACHE INTERNAL "kernel files of the build tree")

function(mlad_kernel)
  cmake_parse_arguments(A "" "OUTPUT;SOURCE;ARCH" "DEFINES;CHECK" ${ARGN})
  set(out "${MLAD_KERNELS_DIR}/${A_OUTPUT}")
  set(log "${MLAD_KERNELS_DIR}/log/${A_OUTPUT}.log")
  string(REGEX REPLACE "^(sm|compute)_" "" number "${A_ARCH}")
  set(kind -cubin)
  if(A_ARCH MATCHES "^compute_")
    set(kind -ptx)
  endif()
  set(checks "")
  foreach(arch IN LISTS A_CHECK)
    list(APPEND checks "${MLAD_KERNELS_DIR}/log/${A_OUTPUT}.${arch}.log")
  endforeach()
  list(TRANSFORM A_DEFINES PREPEND -D)
  set(run "${CMAKE_COMMAND}" -P "${PROJECT_SOURCE_DIR}/deploy/cmake/RunLogged.cmake")
  add_custom_command(
    OUTPUT "${out}" "${log}"
    COMMAND ${run} "${log}" "${MLAD_NVCC}" ${kind} -gencode "arch=compute_${number},code=${A_ARCH}" -std=c++17 -O3
      -I "${PROJECT_SOURCE_DIR}" ${A_DEFINES} -Werror all-warnings -Xptxas -v
      -MD -MF "${out}.d" -MT "${out}" -o "${out}" "${CMAKE_CURRENT_SOURCE_DIR}/${A_SOURCE}"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${A_SOURCE}" "${PROJECT_SOURCE_DIR}/deploy/cmake/RunLogged.cmake"
    DEPFILE "${out}.d"
    COMMENT "Building kernel ${A_OUTPUT}" VERBATIM)
  foreach(arch check IN ZIP_LISTS A_CHECK checks)
    add_custom_command(
      OUTPUT "${check}"
      COMMAND ${run} "${check}" "${MLAD_NVCC}" -cubin "-arch=${arch}" -Xptxas -v -o "${check}.cubin" "${out}"
      DEPENDS "${out}" "${PROJECT_SOURCE_DIR}/deploy/cmake/RunLogged.cmake"
      COMMENT "Assembling ${A_OUTPUT} for ${arch}" VERBATIM)
  endforeach()
  set(MLAD_KERNEL_FILES ${MLAD_KERNEL_FILES} "${out}" CACHE INTERNAL "kernel files of the build tree")
  set(MLAD_KERNEL_LOGS ${MLAD_KERNEL_LOGS} "${log}" ${checks} PARENT_SCOPE)
endfunction()
