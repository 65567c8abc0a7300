// SPDX-License-Identifier: Apache-2.0
// The parts of the page, put into the tool when it is built (page/embed.cmake).
#pragma once

#include <string_view>

namespace weir::page_source {

// page.html, in which @style@, @data@, @library@, @licence@ and @script@ stand for the rest.
std::string_view page();
std::string_view style();    // page.css
std::string_view script();   // the page's own scripts, joined
std::string_view library();  // D3; empty: it was not there when the tool was built
std::string_view licence();  // of D3; empty: likewise

}  // namespace weir::page_source
