// SPDX-License-Identifier: Apache-2.0
#include "look/html.h"

#include <zlib.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "look/html_data.h"
#include "look/output_file.h"
#include "look/page_sources.h"

namespace weir {
namespace {

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

// Empty: there is no memory to compress with.
std::string compressed(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  const auto packed = std::make_unique_for_overwrite<char[]>(size);  // unwritten it takes no memory
  const int code = compress2(reinterpret_cast<Bytef*>(packed.get()), &size,
                             reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 6);
  return code == Z_OK ? std::string(packed.get(), size) : std::string();
}

Status check_page(std::span<const Loaded* const> recordings) {
  if (recordings.size() > 2) {
    return Error(ErrorCode::invalid_argument, "a page shows two recordings at most: name two");
  }
  if (page_source::library().empty()) {
    return Error(ErrorCode::unavailable,
                 "this weir was built without D3, which its pages are drawn with: install it "
                 "(Debian, Ubuntu: apt-get install node-d3), then configure and build again");
  }
  return {};
}

Status put_data(const Loaded& recording, Paths paths, const Report* report, OutputFile& file) {
  const std::string data = compressed(html_data(recording, paths, report));
  if (data.empty()) {
    return Error(ErrorCode::unavailable, "the page's data can't be compressed: out of host memory");
  }
  file.text() += "<script type=\"text/plain\" class=\"recording\">" + base64(data) + "</script>\n";
  file.relieve();
  return {};
}

// The page with each `@name@` replaced, once each, in the order in which they stand in it.
Status put_page(std::span<const Loaded* const> recordings, Paths paths, const Report* report,
                OutputFile& file) {
  std::string_view page = page_source::page();
  const auto up_to = [&](std::string_view name) {
    const std::size_t place = page.find(name);
    file.text() += page.substr(0, place);
    page.remove_prefix(place + name.size());
  };
  up_to("@style@");
  file.text() += page_source::style();
  up_to("@data@");
  for (const Loaded* recording : recordings) {
    if (Status status = put_data(*recording, paths, report, file); !status.ok()) return status;
  }
  up_to("@library@");
  file.text() += page_source::library();
  up_to("@licence@");
  file.text() += page_source::licence();
  up_to("@script@");
  file.text() += page_source::script();
  file.text() += page;
  return {};
}

}  // namespace

Status write_html(const std::string& path, std::span<const Loaded* const> recordings, Paths paths,
                  const Report* report) {
  if (Status allowed = check_page(recordings); !allowed.ok()) return allowed;
  Result<OutputFile> file = OutputFile::open(path);
  if (!file.ok()) return std::move(file).error();
  Status made = put_page(recordings, paths, report, *file);
  return made ? file->commit() : std::move(made);
}

}  // namespace weir
