# Writes OUTPUT, a C file that names the commit SOURCE stands at, and TEXT, if given, with the name alone; leaves them
# alone when they say so already.
cmake_minimum_required(VERSION 3.25)
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE}" describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
  "#include \"tests/bench/machine.h\"\n\nconst char bench_commit[] = \"@commit@\";\n")
if(TEXT)
  file(CONFIGURE OUTPUT "${TEXT}" @ONLY CONTENT "@commit@\n")
endif()
