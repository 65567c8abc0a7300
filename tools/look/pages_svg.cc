// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "look/exporters.h"
#include "look/heaps.h"
#include "look/streams.h"
#include "look/svg_colours.h"
#include "look/svg_parts.h"
#include "replay/units.h"

namespace weir {
namespace {

constexpr double kWidth = 1600, kLeft = 20, kTop = 100, kRow = 26, kBar = 20, kGap = 2;
constexpr double kPlotWidth = kWidth - 2 * kLeft;
constexpr std::uint64_t kMostRows = 80;
constexpr double kVisible = 1;  // pixel: what is narrower is drawn this wide

struct Piece {
  Bytes offset, bytes;
  const BlockLifetime* lifetime;
};

// Pages side by side in rows, each a bar as long as it has bytes.
class PagesPicture {
 public:
  PagesPicture(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file)
      : recording_(recording),
        lifetimes_(lifetimes),
        file_(file),
        pages_(pages_at(recording, recording.end())),
        heaps_(heaps_of(recording)),
        colours_(recording, lifetimes, live_at_end(lifetimes)) {}

  void run();

 private:
  static std::vector<std::uint32_t> live_at_end(const BlockLifetimes& lifetimes);
  void find_pieces();
  void place();
  std::string scale() const;
  void draw(const PageAt& page, double x, double y);
  double width(Bytes bytes) const {
    return static_cast<double>(bytes.count) / static_cast<double>(row_bytes_) * kPlotWidth;
  }

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  OutputFile& file_;
  std::vector<PageAt> pages_;
  const std::unordered_map<std::uint32_t, HeapServes> heaps_;
  const BlockColours colours_;
  std::unordered_map<std::uint32_t, std::vector<Piece>> pieces_;  // by page
  std::uint64_t row_bytes_ = 1;
};

std::vector<std::uint32_t> PagesPicture::live_at_end(const BlockLifetimes& lifetimes) {
  std::vector<std::uint32_t> live;
  for (std::uint32_t block = 0; block < lifetimes.blocks.size(); ++block) {
    if (lifetimes.blocks[block].live_at_end) live.push_back(block);
  }
  return live;
}

// How long a bar of so many bytes is.
std::string PagesPicture::scale() const {
  const Bytes bytes{binary_step(row_bytes_, 8)};
  const double right = kWidth - kLeft, left = right - width(bytes);
  return fmt::format(
      "<path d=\"M{0:.1f} 34v8M{0:.1f} 38H{1:.1f}M{1:.1f} 34v8\" stroke=\"#000\" fill=\"none\"/>"
      "<text x=\"{2:.1f}\" y=\"30\" text-anchor=\"middle\">{3}</text>\n",
      left, right, (left + right) / 2, in_words(bytes));
}

void PagesPicture::find_pieces() {
  std::map<std::uint64_t, const PageAt*> mapped;
  for (const PageAt& page : pages_) {
    for (const Address at : page.mappings) mapped[at.value] = &page;
  }
  for (const BlockLifetime& lifetime : lifetimes_.blocks) {
    if (!lifetime.live_at_end) continue;
    const std::uint64_t begin = lifetime.address.value, end = begin + lifetime.bytes.count;
    auto at = mapped.upper_bound(begin);
    if (at != mapped.begin()) --at;
    for (; at != mapped.end() && at->first < end; ++at) {
      const std::uint64_t from = std::max(begin, at->first);
      const std::uint64_t to = std::min(end, at->first + at->second->bytes.count);
      if (from >= to) continue;
      pieces_[at->second->page.value].push_back({{from - at->first}, {to - from}, &lifetime});
    }
  }
}

// Pages in use first, by the heap that used them first.
void PagesPicture::place() {
  std::stable_sort(pages_.begin(), pages_.end(),
                   [](const PageAt& a, const PageAt& b) { return a.lease < b.lease; });
  Bytes all, largest;
  for (const PageAt& page : pages_) {
    all += page.bytes;
    largest = std::max(largest, page.bytes);
  }
  row_bytes_ = std::max({all.count / kMostRows, 2 * largest.count, (128_MiB).count});
}

void PagesPicture::run() {
  place();
  find_pieces();
  std::vector<std::pair<double, double>> places;
  double x = kLeft, y = kTop;
  for (const PageAt& page : pages_) {
    if (x > kLeft && x + width(page.bytes) > kWidth - kLeft) x = kLeft, y += kRow;
    places.emplace_back(x, y);
    x += width(page.bytes) + kGap;
  }
  Bytes held;
  for (const PageAt& page : pages_) held += page.bytes;
  file_.text() += svg_begin(kWidth, y + kRow + 20,
                            fmt::format("{} at {}: {} live in {} of {} pages", title_of(recording_),
                                        in_words(recording_.end()), in_words(lifetimes_.end.live),
                                        in_words(held), pages_.size()));
  file_.text() += scale();
  auto names = colours_.classes();
  names.emplace_back("in use, no block", "#bbb");
  names.emplace_back("idle", "#eee");
  file_.text() += legend(kLeft, 62, kWidth - kLeft, names);
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    draw(pages_[i], places[i].first, places[i].second);
    file_.relieve();
  }
  file_.text() += "</svg>\n";
}

void PagesPicture::draw(const PageAt& page, double x, double y) {
  std::string lease = "idle";
  if (page.lease != BlockLifetime::kNone) {
    const auto heap = heaps_.find(page.lease);
    lease = fmt::format("first used by heap {}", page.lease);
    if (heap != heaps_.end()) lease += " of stream " + stream_text(heap->second.stream);
  }
  file_.text() += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" "
      "stroke=\"#888\" stroke-width=\"0.5\"><title>{}</title></rect>\n",
      x, y, width(page.bytes), kBar, page.lease == BlockLifetime::kNone ? "#eee" : "#bbb",
      xml(fmt::format("page {}: {}, {}, mapped {} times", page.page.value, in_words(page.bytes),
                      lease, page.mappings.size())));
  for (const Piece& piece : pieces_[page.page.value]) {
    const BlockLifetime& lifetime = *piece.lifetime;
    const auto block = static_cast<std::uint32_t>(&lifetime - lifetimes_.blocks.data());
    file_.text() += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" "
        "stroke=\"#fff\" stroke-width=\"0.2\"><title>{}</title></rect>\n",
        x + width(piece.offset), y + 3, std::max(width(piece.bytes), kVisible), kBar - 6,
        colours_.colour_of(block),
        xml(fmt::format("block of {} on stream {} {}", in_words(lifetime.bytes),
                        stream_text(lifetime.stream), innermost(recording_, lifetime.stack))));
  }
}

}  // namespace

void write_pages_svg(const Recording& recording, const BlockLifetimes& lifetimes,
                     OutputFile& file) {
  PagesPicture(recording, lifetimes, file).run();
}

}  // namespace weir
