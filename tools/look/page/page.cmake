# SPDX-License-Identifier: Apache-2.0
# weir_page: what makes the pages of `weir timeline --to html`, with the page's sources inside.
find_file(WEIR_D3 NAMES d3.min.js
          PATHS /usr/share/nodejs/d3/dist /usr/share/javascript/node-d3 NO_DEFAULT_PATH
          DOC "D3 5, d3.min.js; Debian and Ubuntu have it in node-d3")
# Its licence asks that it goes with it.
find_file(WEIR_D3_LICENCE NAMES copyright PATHS /usr/share/doc/node-d3 NO_DEFAULT_PATH
          DOC "The licence of D3")
mark_as_advanced(WEIR_D3 WEIR_D3_LICENCE)
set(weir_d3 "${WEIR_D3}")
if(NOT WEIR_D3)
  set(weir_d3 "")
  message(STATUS "D3 not found (node-d3): `weir timeline --to html` will say what to install")
endif()

# In the order in which the page reads them: a script uses what those above it define.
set(weir_page_scripts
    units.js
    dom.js
    view.js
    recording.js
    dropped.js
    stack_names.js
    selection.js
    stack.js
    colours.js
    tiles.js
    labels.js
    series.js
    pages.js
    page_map.js
    moment.js
    story.js
    axes.js
    filters.js
    overview.js
    lanes.js
    flame.js
    panel.js
    chart.js
    controls.js
    keys.js
    main.js)
set(weir_page_styles page.css panels.css)
list(TRANSFORM weir_page_scripts PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
list(TRANSFORM weir_page_styles PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
set(weir_page_html "${CMAKE_CURRENT_LIST_DIR}/page.html")

# weir_page_library(NAME D3): a library that makes pages with this d3.min.js; with none where it is
# empty.
function(weir_page_library name d3)
  set(licence "")
  if(d3 AND WEIR_D3_LICENCE)
    set(licence "${WEIR_D3_LICENCE}")
  endif()
  set(sources "${CMAKE_CURRENT_BINARY_DIR}/look/${name}_sources.cc")
  set(embed "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embed.cmake")
  add_custom_command(
    OUTPUT "${sources}"
    COMMAND
      "${CMAKE_COMMAND}" "-DOUTPUT=${sources}" "-DPAGE=${weir_page_html}"
      "-DSTYLES=${weir_page_styles}" "-DSCRIPTS=${weir_page_scripts}" "-DLIBRARY=${d3}"
      "-DLICENCE=${licence}" -P "${embed}"
    DEPENDS "${embed}" "${weir_page_html}" ${weir_page_styles} ${weir_page_scripts} ${d3}
            ${licence}
    COMMENT "Putting the page's sources into ${name}"
    VERBATIM)
  add_library(${name} STATIC "${sources}" $<TARGET_OBJECTS:weir_page_code>)
  target_include_directories(${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC weir::weir PRIVATE weir_look weir_dependency::zlib)
  weir_warnings(${name})
endfunction()

add_library(weir_page_code OBJECT look/html.cc look/html_data.cc)
target_include_directories(weir_page_code PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(weir_page_code PRIVATE weir::weir weir_look weir_dependency::json
                                             weir_dependency::zlib)
weir_warnings(weir_page_code)
weir_page_library(weir_page "${weir_d3}")
if(WEIR_TESTS AND NOT WEIR_SANITIZE)  # (Its code is that of the other.)
  weir_page_library(weir_page_without_d3 "")
endif()
