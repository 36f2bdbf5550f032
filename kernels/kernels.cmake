# The kernel files and their manifest, in the folder kernels of the build tree and of the installation; those that are for
# measuring are in the build tree only. A section of the manifest is written here beside the rule that makes its file;
# kernels/host/manifest.h says what the keys mean.
set(MLAD_KERNEL_LOGS "")
set(mlad_manifest "")

# Costs of the generic kernel: estimates until they are fitted on a device. page_ns: 8.9 MFLOP of 64 rows and 64 keys at
# 3 TFLOP/s per SM; the reducer's read bandwidth and gap as in kernels/plan/presets.c.
set(mlad_generic_costs
"launch_ns = 5000
fill_ns = 3000
page_ns = 3000
drain_ns = 1500
partial_ns = 1000
reduce_launch_ns = 1600
reduce_bytes_per_us = 4000000
reduce_fixed_ns = 4000
")

# generic: one CTA of 256 threads per 64 rows. Two pages in flight where shared memory allows it.
function(mlad_generic_kernel ARCH EXTENSION STAGES SHARED_BYTES CC_MIN CC_MAX)
  set(defines MLA_GENERIC_STAGES=${STAGES} MLA_GENERIC_SHARED_BYTES=${SHARED_BYTES})
  mlad_kernel(OUTPUT generic-${ARCH}.${EXTENSION} SOURCE generic/decode.cu ARCH ${ARCH} DEFINES ${defines} CHECK ${ARGN})
  mlad_kernel(OUTPUT reduce-${ARCH}.${EXTENSION} SOURCE reduce/reduce.cu ARCH ${ARCH} CHECK ${ARGN})
  set(MLAD_KERNEL_LOGS ${MLAD_KERNEL_LOGS} PARENT_SCOPE)
  set(mlad_manifest "${mlad_manifest}
[generic-${ARCH}]
abi = ${MLAD_KERNEL_ABI}
arch = ${ARCH}
min_compute_capability = ${CC_MIN}
max_compute_capability = ${CC_MAX}
decode_file = generic-${ARCH}.${EXTENSION}
decode_entry = mla_generic_decode
decode_threads = 256
decode_shared_bytes = ${SHARED_BYTES}
tile_rows = 256
rows_per_unit = 64
ctas_per_unit = 1
min_pages_per_split = 8
max_pages_per_item = 0
reduce_file = reduce-${ARCH}.${EXTENSION}
reduce_entry = mla_reduce
reduce_threads = 128
reduce_ctas_per_tile = 128
${mlad_generic_costs}" PARENT_SCOPE)
endfunction()

# sm90: the tuned kernel of Hopper; a cluster of CLUSTER CTAs has ROWS rows for each. Costs: as in kernels/plan/presets.c,
# but for PAGE_NS. VARIANT: "", or -WHAT for one that is taken as FEW of another or by its name. FEW: few_rows, or "".
# Further arguments: DEFINES.
# SUMS: vectors of sums in shared memory.
function(mlad_sm90_kernel VARIANT CLUSTER ROWS SUMS SHARED_BYTES PAGE_NS FEW)
  math(EXPR rows "${ROWS} * ${CLUSTER}")
  mlad_kernel(OUTPUT sm90${VARIANT}.cubin SOURCE sm90/decode.cu ARCH sm_90a
    DEFINES MLA_SM90_CLUSTER=${CLUSTER} MLA_SM90_ROWS=${ROWS} MLA_SM90_SHARED_SUMS=${SUMS}
      MLA_SM90_SHARED_BYTES=${SHARED_BYTES} ${ARGN})
  set(by_name_only "")
  if(VARIANT)
    set(by_name_only "by_name_only = 1\n")
  else()
    mlad_kernel(OUTPUT sm90-prepare.cubin SOURCE sm90/prepare.cu ARCH sm_90a)
  endif()
  set(few_rows "")
  if(FEW)
    set(few_rows "few_rows = ${FEW}\n")
  endif()
  set(MLAD_KERNEL_LOGS ${MLAD_KERNEL_LOGS} PARENT_SCOPE)
  set(mlad_manifest "${mlad_manifest}
[sm90${VARIANT}]
abi = ${MLAD_KERNEL_ABI}
arch = sm_90a
${by_name_only}min_compute_capability = 90
max_compute_capability = 90
prepare_file = sm90-prepare.cubin
prepare_entry = mla_prepare_sm90
prepare_threads = 512
decode_file = sm90${VARIANT}.cubin
decode_entry = mla_decode_sm90
decode_threads = 512
decode_shared_bytes = ${SHARED_BYTES}
tile_rows = 256
rows_per_unit = ${rows}
ctas_per_unit = ${CLUSTER}
min_pages_per_split = 4
max_pages_per_item = 2048
${few_rows}reduce_file = reduce-sm_90a.cubin
reduce_entry = mla_reduce_f16
reduce_threads = 128
reduce_ctas_per_tile = 128
launch_ns = 8944
fill_ns = 2000
page_ns = ${PAGE_NS}
drain_ns = 1000
partial_ns = 1
reduce_launch_ns = 700
reduce_bytes_per_us = 4000000
reduce_fixed_ns = 2500
" PARENT_SCOPE)
endfunction()

# mla1: the baseline that the Hopper kernel is measured by, only by its name; takes the same launches, prepared and
# reduced by the same kernels. page_ns: an estimate until it is measured.
function(mlad_mla1_kernel SHARED_BYTES)
  mlad_kernel(OUTPUT mla1.cubin SOURCE baseline/mla1.cu ARCH sm_90a DEFINES MLA_MLA1_SHARED_BYTES=${SHARED_BYTES})
  set(MLAD_KERNEL_LOGS ${MLAD_KERNEL_LOGS} PARENT_SCOPE)
  set(mlad_manifest "${mlad_manifest}
[mla1]
abi = ${MLAD_KERNEL_ABI}
arch = sm_90a
by_name_only = 1
min_compute_capability = 90
max_compute_capability = 90
prepare_file = sm90-prepare.cubin
prepare_entry = mla_prepare_sm90
prepare_threads = 512
decode_file = mla1.cubin
decode_entry = mla_decode_sm90_mla1
decode_threads = 512
decode_shared_bytes = ${SHARED_BYTES}
tile_rows = 256
rows_per_unit = 128
ctas_per_unit = 2
min_pages_per_split = 8
max_pages_per_item = 0
reduce_file = reduce-sm_90a.cubin
reduce_entry = mla_reduce_f16
reduce_threads = 128
reduce_ctas_per_tile = 128
launch_ns = 5600
fill_ns = 1000
page_ns = 1500
drain_ns = 500
partial_ns = 1500
reduce_launch_ns = 700
reduce_bytes_per_us = 4000000
reduce_fixed_ns = 3000
" PARENT_SCOPE)
endfunction()

# h128: what that baseline packs and unpacks with (kernels/baseline/h128.h); no section of the manifest.
function(mlad_h128_kernels)
  mlad_kernel(OUTPUT h128.cubin SOURCE baseline/h128.cu ARCH sm_90a)
  set(MLAD_KERNEL_LOGS ${MLAD_KERNEL_LOGS} PARENT_SCOPE)
endfunction()

file(STRINGS abi/abi.h mlad_abi_line REGEX "^#define MLA_ABI_VERSION ")
string(REGEX MATCH "[0-9]+" MLAD_KERNEL_ABI "${mlad_abi_line}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/abi/abi.h")

# page_ns of the others, measured where each page is read once: 32 sequences of 128K, without what begins and ends items.
mlad_sm90_kernel("" 2 64 0 225976 1195 sm90-96)
mlad_sm90_kernel(-96 2 48 0 209592 1120 sm90-64)
mlad_sm90_kernel(-64 1 64 5 230072 1400 sm90-48)
mlad_sm90_kernel(-48 1 48 8 230072 1310 sm90-32)
mlad_sm90_kernel(-32 1 32 8 216520 1150 "")
mlad_generic_kernel(sm_90a cubin 2 124928 90 90)
mlad_generic_kernel(compute_80 ptx 1 88064 80 9999 sm_80 sm_90 sm_100 sm_120)

function(mlad_write_manifest PATH)
  file(CONFIGURE OUTPUT "${PATH}" @ONLY CONTENT
"; Kernel files of mlad @PROJECT_VERSION@, nvcc @MLAD_CUDA_VERSION@; made by the build, not meant to be edited.
@mlad_manifest@")
endfunction()

# What users get.
set(mlad_installed_manifest "${CMAKE_CURRENT_BINARY_DIR}/installed/kernels.ini")
mlad_write_manifest("${mlad_installed_manifest}")
install(FILES ${MLAD_KERNEL_FILES} "${mlad_installed_manifest}"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/mlad/kernels" COMPONENT daemon)

# What only tests and mla-bench use, which are not installed: in the build tree, and in the portable folder beside them.
if(MLAD_BUILD_TESTS)
  mlad_sm90_kernel(-nopromotion 2 64 0 225976 1195 "" MLA_SM90_PROMOTION=0)
  mlad_mla1_kernel(222800)
  mlad_h128_kernels()
endif()
mlad_write_manifest("${MLAD_KERNELS_DIR}/kernels.ini")
add_custom_target(mlad_kernel_files ALL DEPENDS ${MLAD_KERNEL_FILES} ${MLAD_KERNEL_LOGS})
set(MLAD_KERNEL_LOGS "${MLAD_KERNEL_LOGS}" CACHE INTERNAL "what ptxas says of each kernel")
