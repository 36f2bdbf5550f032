# Libraries from outside the tree, each as an imported target. README.md says why each is taken.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(libuv REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(protobuf_c REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(inih REQUIRED IMPORTED_TARGET inih)
find_program(PROTOC_C protoc-c REQUIRED)
find_path(UTHASH_INCLUDE_DIR uthash.h REQUIRED) # headers only, in the compiler's own path
if(MLAD_CPU_BACKEND)
  pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
endif()
# The endpoint is for the daemon that a distribution installs: a portable folder does without, a package has it.
set(MLAD_HAVE_HTTP OFF)
set(MLAD_HTTP_LIBRARY "")
if(MLAD_PACKAGE OR MLAD_HTTP STREQUAL "ON")
  pkg_check_modules(libmicrohttpd REQUIRED IMPORTED_TARGET libmicrohttpd)
elseif(MLAD_HTTP STREQUAL "AUTO" AND NOT MLAD_PORTABLE)
  pkg_check_modules(libmicrohttpd IMPORTED_TARGET libmicrohttpd)
endif()
if(TARGET PkgConfig::libmicrohttpd)
  set(MLAD_HAVE_HTTP ON)
  set(MLAD_HTTP_LIBRARY PkgConfig::libmicrohttpd)
endif()
if(MLAD_BUILD_TESTS)
  pkg_check_modules(check REQUIRED IMPORTED_TARGET check)
endif()

# nvcc and cuda.h, for the kernels and for what calls the driver. Nothing links CUDA.
include(MladCuda)

if(MLAD_PORTABLE)
  include(MladPortable)
  mlad_archives()
endif()
