# SPDX-License-Identifier: Apache-2.0
# weir_fuzz(NAME source... [LIBS target...])
#
# A fuzzing target: the sources define LLVMFuzzerTestOneInput. Under Clang it is a libFuzzer
# program; under other compilers the same sources get a main that runs the files it is given.
# Either way, ctest runs it over tests/fuzz/corpus/NAME/, so that every crash ever found stays fixed.
include_guard(GLOBAL)

function(weir_fuzz name)
  if(WEIR_SANITIZE MATCHES "thread")
    return()  # one thread reads them
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBS")
  set(corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  weir_warnings(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE weir::weir ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/run_files_main.cc")
  endif()
  file(GLOB_RECURSE files CONFIGURE_DEPENDS "${corpus}/*")
  if(NOT files)
    message(WARNING "fuzzing target ${name} has no corpus: put inputs in ${corpus}")
    return()
  endif()
  # Files, not the folder: libFuzzer then runs each once and stops.
  add_test(NAME fuzz.${name}.corpus COMMAND ${name} ${files})
  set_tests_properties(fuzz.${name}.corpus PROPERTIES TIMEOUT 120 LABELS fuzz ENVIRONMENT
                                                       "${WEIR_TEST_ENVIRONMENT}")
endfunction()
