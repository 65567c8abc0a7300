# SPDX-License-Identifier: Apache-2.0
# cmake -DOUTPUT=FILE.cc -DPAGE=F -DSTYLES=F;... -DSCRIPTS=F;... -DLIBRARY=F -DLICENCE=F -P embed.cmake
#
# Writes the page's sources into a C++ file, as look/page_sources.h declares them. LIBRARY and LICENCE
# may be empty.
cmake_minimum_required(VERSION 3.25)

# As bytes and not as a string literal: nothing in a file can end it early, however long it is.
function(add_bytes name)
  set(hex "")
  foreach(file IN LISTS ARGN)
    file(READ "${file}" one HEX)
    string(APPEND hex "${one}")
  endforeach()
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND text "constexpr char k_${name}[] = {\n${bytes}0};\n"
         "std::string_view ${name}() { return {k_${name}, ${size}}; }\n")
  set(text "${text}" PARENT_SCOPE)
endfunction()

# A script's text stands between <script> and </script>; what would end it early is refused.
foreach(file IN LISTS SCRIPTS LIBRARY LICENCE)
  file(STRINGS "${file}" found REGEX "</[sS][cC][rR][iI][pP][tT]|<!--")
  if(found)
    message(FATAL_ERROR "${file} can't stand in a page: it has </script or <!--")
  endif()
endforeach()

set(text "#include \"look/page_sources.h\"\n\nnamespace weir::page_source {\n")
add_bytes(page "${PAGE}")
add_bytes(style ${STYLES})
add_bytes(script ${SCRIPTS})
add_bytes(library ${LIBRARY})
add_bytes(licence ${LICENCE})
string(APPEND text "}  // namespace weir::page_source\n")
file(WRITE "${OUTPUT}" "${text}")
