// The parts of the page, put into the tool when it is built (page/embed.cmake).
#pragma once

#include <string_view>

namespace weir::page_source {

std::string_view page();     // page.html, with @style@, @data@, @library@ and @script@
std::string_view style();    // page.css
std::string_view script();   // the page's own scripts, joined
std::string_view library();  // D3; empty: it was not there when the tool was built

}  // namespace weir::page_source
