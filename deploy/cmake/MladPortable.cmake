# A portable build (MLAD_PORTABLE): everything of one folder, portable/ in the build tree, that needs nothing but glibc,
# the one of this machine or a newer one. Libraries from outside are linked as archives.
#
#   mlad_archives()     makes the imported targets stand for archives; a library without one is an error
#   mlad_portable(PROGRAMS ... FILES ... KERNELS ...)
#       called once: target portable puts these there, programs stripped, kernel files in the folder kernels

set(MLAD_PORTABLE_DIR "${PROJECT_BINARY_DIR}/portable")

function(mlad_archive TARGET)
  cmake_parse_arguments(A "" "" "NAMES;LINK" ${ARGN})
  set(files "")
  foreach(name IN LISTS A_NAMES)
    string(MAKE_C_IDENTIFIER "MLAD_ARCHIVE_${name}" variable)
    string(REPLACE "|" ";" choices "${name}")
    find_library(${variable} NAMES ${choices} REQUIRED)
    list(APPEND files "${${variable}}")
  endforeach()
  set_target_properties(${TARGET} PROPERTIES INTERFACE_LINK_LIBRARIES "${files};${A_LINK}")
endfunction()

function(mlad_archives)
  mlad_archive(PkgConfig::libuv NAMES libuv_a.a|libuv.a LINK Threads::Threads ${CMAKE_DL_LIBS} rt)
  mlad_archive(PkgConfig::protobuf_c NAMES libprotobuf-c.a)
  mlad_archive(PkgConfig::inih NAMES libinih.a)
  if(MLAD_BUILD_TESTS)
    mlad_archive(PkgConfig::check NAMES libcheck_pic.a|libcheck.a libsubunit.a LINK Threads::Threads rt m)
  endif()
endfunction()

function(mlad_portable)
  cmake_parse_arguments(A "" "" "PROGRAMS;FILES;KERNELS" ${ARGN})
  set(all "")
  foreach(program IN LISTS A_PROGRAMS)
    set(out "${MLAD_PORTABLE_DIR}/${program}")
    list(APPEND all "${out}")
    add_custom_command(
      OUTPUT "${out}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${MLAD_PORTABLE_DIR}"
      COMMAND "${CMAKE_STRIP}" -o "${out}" "$<TARGET_FILE:${program}>"
      DEPENDS ${program} "$<TARGET_FILE:${program}>"
      COMMENT "Stripping ${program}" VERBATIM)
  endforeach()
  foreach(file IN LISTS A_FILES A_KERNELS)
    cmake_path(GET file FILENAME name)
    set(folder "${MLAD_PORTABLE_DIR}")
    if(file IN_LIST A_KERNELS)
      string(APPEND folder "/kernels")
    endif()
    list(APPEND all "${folder}/${name}")
    add_custom_command(
      OUTPUT "${folder}/${name}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}"
      COMMAND "${CMAKE_COMMAND}" -E copy "${file}" "${folder}/${name}"
      DEPENDS "${file}"
      COMMENT "Copying ${name}" VERBATIM)
  endforeach()
  add_custom_target(portable DEPENDS ${all})
endfunction()
