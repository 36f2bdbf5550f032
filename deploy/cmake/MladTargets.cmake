# Settings that every target of the tree shares, and the functions that declare targets.
#
#   mlad_library(NAME SOURCES ... [DEPENDS ...])     one static library per folder; its include root is the source root
#   mlad_program(NAME SOURCES ... [DEPENDS ...])     a program
#   mlad_test(NAME SOURCES ... [DEPENDS ...] [LABELS ...] [TIMEOUT seconds])
#       one Check program and one CTest test; each source registers its suites with MLA_SUITE() (tests/support/check_main.h);
#       the label threads says that the program has more than one thread: those run under ThreadSanitizer too
#   mlad_cuda_test(NAME ...)    as mlad_test, for what calls the driver: NAME runs on the fake driver, where the build has
#       it, and NAME_gpu, label gpu, on the GPU of the machine; skipped where there is none

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# -Werror; cmake --compile-no-warning-as-error lifts it for compilers newer than the tree.
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()

# Position-independent programs need -pie at the link too, not only -fPIE.
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
include(CheckCCompilerFlag)
check_c_compiler_flag(-fstack-clash-protection MLAD_HAS_STACK_CLASH)
check_c_compiler_flag(-fcf-protection MLAD_HAS_CF_PROTECTION)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

add_library(mlad_flags INTERFACE)
target_compile_definitions(mlad_flags INTERFACE _GNU_SOURCE)
target_compile_options(mlad_flags INTERFACE
  -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
  -Wwrite-strings -Wformat=2 -Wimplicit-fallthrough -fno-common -fstack-protector-strong
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" # messages of tests and records of crashes name files, not machines
  $<$<BOOL:${MLAD_HAS_STACK_CLASH}>:-fstack-clash-protection>
  $<$<BOOL:${MLAD_HAS_CF_PROTECTION}>:-fcf-protection>)
target_include_directories(mlad_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
# ENVIRONMENT of every test, also of those that add_test() declares. A finding of a sanitizer ends the program.
set(MLAD_TEST_ENVIRONMENT "")
if(MLAD_SANITIZE)
  list(JOIN MLAD_SANITIZE "," mlad_sanitizers)
  target_compile_options(mlad_flags INTERFACE -fsanitize=${mlad_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(mlad_flags INTERFACE -fsanitize=${mlad_sanitizers})
  set(MLAD_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:check_initialization_order=1:detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1"
    # Without atexit_sleep_ms each process, so each test and what it forks, sleeps a second at its end.
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=10")
else()
  # _FORTIFY_SOURCE warns where the compiler does not optimise; some compilers predefine it.
  target_compile_options(mlad_flags INTERFACE $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>)
  target_link_options(mlad_flags INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack,--as-needed
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,-z,defs>)
endif()

function(mlad_library NAME)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${NAME} STATIC ${A_SOURCES})
  target_link_libraries(${NAME} PUBLIC ${A_DEPENDS} PRIVATE mlad_flags)
endfunction()

function(mlad_program NAME)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${NAME} ${A_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${A_DEPENDS} mlad_flags)
endfunction()

function(mlad_test NAME)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(MLAD_SANITIZE) # as the timeouts of test cases: tests/support/check_main.c
    math(EXPR A_TIMEOUT "8 * ${A_TIMEOUT}")
  endif()
  mlad_program(${NAME} SOURCES ${A_SOURCES} DEPENDS ${A_DEPENDS} mlad_check_main)
  add_test(NAME ${NAME} COMMAND ${NAME})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" SKIP_RETURN_CODE 77
    ENVIRONMENT "${MLAD_TEST_ENVIRONMENT}")
endfunction()

function(mlad_cuda_test NAME)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  mlad_program(${NAME} SOURCES ${A_SOURCES} DEPENDS ${A_DEPENDS} mlad_fake_cuda_report mlad_check_main)
  set(environment "${MLAD_TEST_ENVIRONMENT}" "MLA_KERNELS_DIR=${MLAD_KERNELS_DIR}")
  if(TARGET mla_fake_cuda)
    add_dependencies(${NAME} mla_fake_cuda)
    add_test(NAME ${NAME} COMMAND ${NAME})
    set_tests_properties(${NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" SKIP_RETURN_CODE 77
      ENVIRONMENT "${environment};MLA_CUDA_DRIVER=$<TARGET_FILE:mla_fake_cuda>")
  endif()
  add_test(NAME ${NAME}_gpu COMMAND "${PROJECT_SOURCE_DIR}/tests/backend/on_gpu.sh" $<TARGET_FILE:${NAME}>)
  set_tests_properties(${NAME}_gpu PROPERTIES TIMEOUT 600 LABELS gpu SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu
    ENVIRONMENT "${environment}")
endfunction()
