// SPDX-License-Identifier: Apache-2.0
#include "look/html.h"

#include <zlib.h>

#include <string_view>
#include <utility>

#include "look/html_data.h"
#include "look/output_file.h"
#include "look/page_sources.h"
#include "replay/named_files.h"

namespace weir {
namespace {

Result<std::string> compressed(std::string_view bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  const int failed = compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                               reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 6);
  if (failed != Z_OK)
    return Error(ErrorCode::unavailable, "the page's data can't be compressed: out of host memory");
  out.resize(size);
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = (group << 8) | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      out.push_back(i + j > bytes.size() ? '=' : kDigits[(group >> (18 - 6 * j)) & 63]);
  }
  return out;
}

// `page` with each `@name@` of `parts` replaced, once each, in the order in which they stand in it.
struct Part {
  std::string_view name, text;
};
std::string filled(std::string_view page, std::initializer_list<Part> parts) {
  std::string out;
  for (const Part& part : parts) {
    const std::size_t place = page.find(part.name);
    if (place == std::string_view::npos) continue;
    out += page.substr(0, place);
    out += part.text;
    page.remove_prefix(place + part.name.size());
  }
  return out += page;
}

}  // namespace

Result<std::string> html_page(std::span<const Recording* const> recordings) {
  if (recordings.empty() || recordings.size() > 2) {
    return Error(ErrorCode::invalid_argument,
                 "a page shows one recording, or two side by side: name one or two");
  }
  if (page_source::library().empty()) {
    return Error(ErrorCode::unavailable,
                 "this weir was built without D3, which its pages are drawn with: install it "
                 "(Debian, Ubuntu: apt-get install node-d3), then configure and build again");
  }
  std::string data;
  for (const Recording* recording : recordings) {
    const Result<std::string> bytes = compressed(html_data(*recording));
    if (!bytes.ok()) return bytes.error();
    data += "<script type=\"text/plain\" class=\"recording\">" + base64(*bytes) + "</script>\n";
  }
  return filled(page_source::page(), {{"@style@", page_source::style()},
                                      {"@data@", data},
                                      {"@library@", page_source::library()},
                                      {"@licence@", page_source::licence()},
                                      {"@script@", page_source::script()}});
}

Status write_html(const std::string& path, std::span<const Recording* const> recordings) {
  for (const Recording* recording : recordings) {
    // Two files are read; OutputFile knows of one.
    if (is_same_file(path, recording->source)) {
      return Error(ErrorCode::invalid_argument,
                   path + ": is the file that is read; name another one to write");
    }
  }
  const Result<std::string> page = html_page(recordings);
  if (!page.ok()) return page.error();
  Result<OutputFile> file = OutputFile::open(path, "");
  if (!file.ok()) return std::move(file).error();
  file->text() = *page;
  return file->commit();
}

}  // namespace weir
