# weir_test(NAME source... [LIBS target...] [TIMEOUT seconds] [LABELS label...])
#
# A GoogleTest program; each TEST in it becomes one ctest test, NAME.Suite.Test. It runs in the
# source root, so that it finds bench/traces/; includes read "tests/...". TIMEOUT is for each TEST,
# 120 s unless said; under a sanitizer, which slows a test down by up to twenty times, five times as
# much.
include_guard(GLOBAL)
include(GoogleTest)

# For every test, whatever it is; without the sanitizer these say nothing to it.
set(WEIR_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1" "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

function(weir_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LIBS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(WEIR_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  weir_warnings(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE weir::weir ${arg_LIBS} GTest::gtest_main GTest::gmock)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
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
