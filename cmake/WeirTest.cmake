# SPDX-License-Identifier: Apache-2.0
# weir_test(NAME source... [LIBS target...] [TIMEOUT seconds] [LABELS label...]
#           [ONE_THREAD])
#
# A GoogleTest program; each TEST in it becomes one ctest test, NAME.Suite.Test. It runs in the
# source root, so that it finds bench/traces/; includes read "tests/...". TIMEOUT is for each TEST,
# 120 s unless said; under a sanitizer, which slows a test down by up to twenty times, five times as
# much. ONE_THREAD: there is never another, in no program that it starts either, or other tests run it
# too; the thread sanitizer has nothing more to see there, and its builds leave the test out.
include_guard(GLOBAL)
include(GoogleTest)

# For every test, whatever it is; without the sanitizer these say nothing to it.
set(WEIR_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1" "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

# A test's own code, with what it uses of headers, is compiled as quickly as can be, and the library
# that it tests as the preset says: most of the time of a build goes into tests, and little of the
# time of a test into its own code. (Without the macro, which some systems set: it needs an
# optimised build.)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(WEIR_TEST_OPTIONS -O0 -U_FORTIFY_SOURCE)
endif()
# A failed expectation names its line, and a sanitizer's report the test: line numbers of a test's own
# code say no more there, and take a tenth of the time.
if(WEIR_SANITIZE)
  list(APPEND WEIR_TEST_OPTIONS -g0)
endif()
# libFuzzer's counters are for what it is to explore, the library.
if(WEIR_SANITIZE MATCHES "fuzzer-no-link")
  list(APPEND WEIR_TEST_OPTIONS -fno-sanitize=fuzzer-no-link)
endif()

function(weir_test_compiled target)
  weir_warnings(${target})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${WEIR_TEST_OPTIONS}>")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE weir::weir GTest::gtest_main GTest::gmock)
  # One kind of code for all, as precompiled headers need, whatever kind this is built as a part of.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
endfunction()

# A machine that can't use GCC's precompiled headers is slower, and no more.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND WEIR_TEST_OPTIONS -Wno-error=invalid-pch)
endif()

# What nearly every test includes is compiled once. (Tests must do without: a build
# with ccache has no precompiled headers, since it can't keep what came of them.)
add_library(weir_test_headers OBJECT "${PROJECT_SOURCE_DIR}/tests/headers.cc")
weir_test_compiled(weir_test_headers)
target_precompile_headers(
  weir_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <algorithm> <array> <atomic> <chrono>
                            <functional> <map> <memory> <optional> <random> <set> <sstream> <string>
                            <thread> <vector>)

function(weir_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONE_THREAD" "TIMEOUT" "LIBS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(WEIR_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  weir_test_compiled(${name})
  target_precompile_headers(${name} REUSE_FROM weir_test_headers)
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if(arg_ONE_THREAD AND WEIR_SANITIZE MATCHES "thread")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  set(properties TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${WEIR_TEST_ENVIRONMENT}")
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  gtest_discover_tests(
    ${name}
    TEST_PREFIX ${name}.
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    NO_PRETTY_VALUES
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    PROPERTIES ${properties})
endfunction()
