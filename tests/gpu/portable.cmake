# The folder of a portable build, and mlad-tests in it: the suites of many test programs in one, those that make sense
# on a machine with a GPU. gpu_kernels stays apart: its rig is another one.
set(mlad_tests_of
  test_util test_proto test_plan test_kernel_bits test_net_frame_reader test_sched_deadlines test_sched_stories
  test_plan_ctl test_ctl_top test_reference test_json test_app test_client test_net test_kernels_choose)
foreach(theme lengths tails output faults layouts numerics splits masks words regions random)
  list(APPEND mlad_tests_of backend_${theme})
endforeach()
list(APPEND mlad_tests_of test_backend_cuda_memory test_client_cuda)
foreach(subject workers memory time deaths faults few_rows plans steps tables recover)
  list(APPEND mlad_tests_of test_gpu_${subject})
endforeach()

set(mlad_tests_objects "")
set(mlad_tests_libraries "")
foreach(test IN LISTS mlad_tests_of)
  if(NOT TARGET ${test})
    message(STATUS "mlad-tests is built without ${test}")
    continue()
  endif()
  list(APPEND mlad_tests_objects "$<TARGET_OBJECTS:${test}>")
  get_target_property(libraries ${test} LINK_LIBRARIES)
  list(APPEND mlad_tests_libraries ${libraries})
endforeach()
list(REMOVE_DUPLICATES mlad_tests_libraries)
add_executable(mlad-tests ${mlad_tests_objects})
set_target_properties(mlad-tests PROPERTIES LINKER_LANGUAGE C)
target_link_libraries(mlad-tests PRIVATE ${mlad_tests_libraries})

set(mlad_commit "${CMAKE_CURRENT_BINARY_DIR}/commit")
add_custom_target(mlad_commit
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${mlad_commit}.c" "-DTEXT=${mlad_commit}"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/bench/commit.cmake"
  BYPRODUCTS "${mlad_commit}"
  COMMENT "Naming the commit for tests/gpu/run.sh" VERBATIM)

mlad_portable(
  PROGRAMS mlad mlactl mlad-tests gpu_kernels gpu_race mla-bench mla_example_worker_cuda mla_example_worker_step
    mla_example_kernels mla_quickstart_worker
  FILES "${mlad_commit}" "${CMAKE_CURRENT_SOURCE_DIR}/unit/schema.golden"
  KERNELS ${MLAD_KERNEL_FILES} "${MLAD_KERNELS_DIR}/kernels.ini")
add_test(NAME portable_needs_glibc_only
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/gpu/portable_check.sh" "${MLAD_PORTABLE_DIR}")
set_tests_properties(portable_needs_glibc_only PROPERTIES LABELS portable)
