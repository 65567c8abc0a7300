# SPDX-License-Identifier: Apache-2.0
# For tools/checks/mutants, as CMAKE_PROJECT_INCLUDE: the project's libraries count which lines run,
# and test_programs.txt in the build's folder has the names of the GoogleTest programs. A mutant may
# leave a variable unused, so the libraries are compiled without warnings; each source is compiled
# alone, since mutants change one; and its object is the same each time (-frandom-seed), so that what a
# program covers is still known when a mutant was taken back. As under CI's sanitizers, the standard
# library checks how its containers are used. Tests are compiled as ever, and come from ccache where it has them.
cmake_language(DEFER CALL weir_mutating_instrument)

function(weir_mutating_targets folder result)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(inner IN LISTS folders)
    weir_mutating_targets("${inner}" more)
    list(APPEND targets ${more})
  endforeach()
  set(${result} "${targets}" PARENT_SCOPE)
endfunction()

function(weir_mutating_instrument)
  weir_mutating_targets("${CMAKE_SOURCE_DIR}" targets)
  set(programs "")
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    if(type MATCHES "EXECUTABLE|MODULE|SHARED")
      target_link_options(${target} PRIVATE --coverage)
    endif()
    if(type STREQUAL "EXECUTABLE")
      set(dump "${WEIR_MUTATING}/dump_on_abort.cc")
      target_sources(${target} PRIVATE "${dump}")
      set_property(SOURCE "${dump}" TARGET_DIRECTORY ${target} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
      get_target_property(libraries ${target} LINK_LIBRARIES)
      if("GTest::gtest_main" IN_LIST libraries)
        string(APPEND programs "${target}\n")
      endif()
    elseif(type MATCHES "(STATIC|SHARED|MODULE|OBJECT)_LIBRARY"
           AND (folder MATCHES "/(allocator|comm)(/|$)" OR sources MATCHES "/allocator/core/"))
      target_compile_options(${target} PRIVATE --coverage -fprofile-update=prefer-atomic
                                               -frandom-seed=weir -O1 -w -D_GLIBCXX_ASSERTIONS)
      set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    endif()
  endforeach()
  file(WRITE "${CMAKE_BINARY_DIR}/test_programs.txt" "${programs}")
endfunction()
