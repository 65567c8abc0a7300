// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "look/exporters.h"
#include "look/streams.h"
#include "look/svg_colours.h"
#include "look/svg_parts.h"
#include "replay/units.h"

namespace weir {
namespace {

constexpr double kWidth = 1600, kHeight = 900;
constexpr double kLeft = 100, kRight = 350, kTop = 120, kBottom = 60;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// Blocks that are drawn one by one: so many of the largest, and of those with the most area.
constexpr std::size_t kLargest = 1000;
constexpr double kVisible = 0.3;  // of a pixel: smaller steps are not drawn
constexpr double kPixel =
    1;  // no block of the peak is narrower, or lower in the column of the peak
// The column beside the picture, of the blocks of the peak.
constexpr double kColumn = kWidth - kRight + 40, kColumnWidth = 44, kLabelHeight = 15;
constexpr std::size_t kLongestLabel = 34;  // letters
// A line above this many times what Weir reserved would flatten the picture, and is said in words.
constexpr double kMostOther = 1.5;

// As on the page.
constexpr const char* kReserved = "#b00020";
constexpr const char* kOtherReserved = "#7b3fa0";

// A block's bottom edge over time: it comes down when a block below it goes.
struct Area {
  std::uint32_t block;
  const BlockLifetime* lifetime;
  std::vector<std::pair<double, double>> edge;  // x; the offset in bytes from there on
};

class Picture {
 public:
  Picture(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file)
      : recording_(recording),
        lifetimes_(lifetimes),
        file_(file),
        peak_(blocks_of_peak(recording, lifetimes)),
        colours_(recording, lifetimes, peak_) {
    length_ =
        static_cast<double>(std::max<std::int64_t>((recording.end() - recording.begin()).count, 1));
    const Bytes most = std::max(lifetimes.peak_live.live, lifetimes.peak_reserved.reserved);
    const Bytes other = recording.other_peak_reserved;
    shows_other_ = other > 0_B &&
                   static_cast<double>(other.count) <= kMostOther * static_cast<double>(most.count);
    const Bytes highest = shows_other_ ? std::max(most, other) : most;
    height_ = std::max(static_cast<double>(highest.count) * 1.06, 1.0);
  }

  void run() {
    const std::string name = title_of(recording_);
    std::string title = fmt::format("{}: at its peak {} in {} blocks, {} reserved at most", name,
                                    in_words(lifetimes_.peak_live.live), peak_.size(),
                                    in_words(lifetimes_.peak_reserved.reserved));
    if (recording_.other_peak_reserved > 0_B) {
      title += fmt::format("; PyTorch reserved {}", in_words(recording_.other_peak_reserved));
    }
    text() += svg_begin(kWidth, kHeight, title);
    names();
    grid();
    live();
    // The blocks of the peak come last, so that no other covers them.
    const std::vector<Area> all = areas();
    for (const bool of_peak : {false, true}) {
      for (const Area& area : all) {
        if (is_of_peak(area.block) == of_peak) draw(area);
      }
    }
    reserved();
    other_reserved();
    peak_label();
    peak_column();
    text() += "</svg>\n";
  }

 private:
  std::string& text() { return file_.text(); }
  double x(Nanoseconds time) const {
    return kLeft + static_cast<double>((time - recording_.begin()).count) / length_ * kPlotWidth;
  }
  double y(double bytes) const { return kHeight - kBottom - bytes / height_ * kPlotHeight; }

  static std::vector<std::uint32_t> blocks_of_peak(const Recording& recording,
                                                   const BlockLifetimes& lifetimes);
  bool is_of_peak(std::uint32_t block) const {
    return std::binary_search(peak_.begin(), peak_.end(), block);
  }

  void names();
  void grid();
  void live();
  void reserved();
  void other_reserved();
  void peak_label();
  void peak_column();
  void column_part(double& top, double height, const std::string& colour, double opacity,
                   const std::string& label);
  std::string steps(Bytes MemoryPoint::*value) const;
  std::vector<std::uint32_t> chosen() const;
  std::vector<Area> areas() const;
  void draw(const Area& area);

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  OutputFile& file_;
  const std::vector<std::uint32_t> peak_;  // the blocks that live at the peak, by number
  const BlockColours colours_;
  double length_, height_;
  bool shows_other_ = false;  // the line of what PyTorch reserved
};

std::vector<std::uint32_t> Picture::blocks_of_peak(const Recording& recording,
                                                   const BlockLifetimes& lifetimes) {
  const std::size_t events = events_at(lifetimes.peak_live, recording);
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t block = 0; block < lifetimes.blocks.size(); ++block) {
    if (is_live_after(lifetimes.blocks[block], events, recording)) blocks.push_back(block);
  }
  return blocks;
}

void Picture::names() {
  auto all = colours_.classes();
  if (lifetimes_.blocks.size() > 2 * kLargest) all.emplace_back("smaller blocks", "#bbb");
  all.emplace_back("reserved", kReserved);
  if (shows_other_) all.emplace_back("reserved by PyTorch", kOtherReserved);
  text() += legend(kLeft, 60, kWidth - kRight, all);
}

void Picture::grid() {
  const auto most = static_cast<std::uint64_t>(height_);
  const std::uint64_t step = binary_step(most, 10);
  for (std::uint64_t bytes = 0; bytes <= most; bytes += step) {
    const double at = y(static_cast<double>(bytes));
    text() += fmt::format(
        "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, at, kWidth - kRight, kLeft - 8, at + 5, in_words(Bytes{bytes}));
  }
  const auto length = static_cast<std::int64_t>(length_);
  const std::int64_t tick = decimal_step(length, 10);
  for (std::int64_t time = 0; time <= length; time += tick) {
    const double at = x(recording_.begin() + Nanoseconds{time});
    text() += fmt::format(
        "<path d=\"M{:.1f} {:.1f}v6\" stroke=\"#000\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        at, kHeight - kBottom, at, kHeight - kBottom + 24, in_words(Nanoseconds{time}));
  }
}

// The outline of a quantity: of each pixel's width, its first, highest, lowest and last value.
std::string Picture::steps(Bytes MemoryPoint::*value) const {
  std::string path;
  double column = -1, at = 0;
  std::uint64_t lowest = UINT64_MAX, highest = 0, last = 0;
  const auto finish = [&] {
    path += fmt::format("H{:.1f}", at);
    if (highest != last) path += fmt::format("V{:.1f}", y(static_cast<double>(highest)));
    if (lowest != last) path += fmt::format("V{:.1f}", y(static_cast<double>(lowest)));
    path += fmt::format("V{:.1f}", y(static_cast<double>(last)));
  };
  memory_over_time(recording_, [&](const MemoryPoint& point) {
    const double place = x(point.time);
    if (std::floor(place) != column) {
      if (column >= 0) finish();
      column = std::floor(place), at = place;
      lowest = UINT64_MAX, highest = 0;
    }
    last = (point.*value).count;
    lowest = std::min(lowest, last);
    highest = std::max(highest, last);
  });
  finish();
  return path + fmt::format("H{:.1f}", kWidth - kRight);
}

void Picture::live() {
  text() += fmt::format("<path d=\"M{:.1f} {:.1f}{}V{:.1f}Z\" fill=\"#bbb\" stroke=\"#bbb\"/>\n",
                        kLeft, y(0), steps(&MemoryPoint::live), y(0));
}

void Picture::reserved() {
  const auto first = static_cast<double>(lifetimes_.begin.reserved.count);
  text() += fmt::format(
      "<path d=\"M{:.1f} {:.1f}{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", kLeft,
      y(first), steps(&MemoryPoint::reserved), kReserved);
}

// Where only the peak of it is known: a level line.
void Picture::other_reserved() {
  if (!shows_other_) return;
  std::vector<RecordedReserved> points = recording_.other_reserved;
  if (points.empty()) points.push_back({Nanoseconds{}, recording_.other_peak_reserved});
  std::string path =
      fmt::format("M{:.1f} {:.1f}", kLeft, y(static_cast<double>(points.front().bytes.count)));
  for (const RecordedReserved& point : points) {
    const double at = std::min(x(recording_.begin() + point.time), kWidth - kRight);
    path += fmt::format("H{:.1f}V{:.1f}", at, y(static_cast<double>(point.bytes.count)));
  }
  text() += fmt::format(
      "<path d=\"{}H{:.1f}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
      "stroke-dasharray=\"2 4\"/>\n",
      path, kWidth - kRight, kOtherReserved);
}

void Picture::peak_label() {
  const MemoryPoint& peak = lifetimes_.peak_live;
  if (peak_.empty()) return;
  const double at = x(peak.time);
  const double top = y(static_cast<double>(peak.live.count));
  const double above = std::min(top, y(static_cast<double>(peak.reserved.count))) - 10;
  const bool right = at < kLeft + kPlotWidth / 2;
  text() += fmt::format(
      "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#000\" stroke-dasharray=\"5 3\"/>"
      "<path d=\"M{0:.1f} {3:.1f}l-5 -8h10z\"/>"
      "<text x=\"{4:.1f}\" y=\"{5:.1f}\" text-anchor=\"{6}\" font-weight=\"bold\" stroke=\"#fff\" "
      "stroke-width=\"4\" paint-order=\"stroke\">peak {7} at {8}</text>\n",
      at, kTop, top - 10, top - 2, right ? at + 9 : at - 9, above, right ? "start" : "end",
      in_words(peak.live), in_words(peak.time - recording_.begin()));
}

// A part of the column of the peak, below `top`; its label where it is high enough for one.
void Picture::column_part(double& top, double height, const std::string& colour, double opacity,
                          const std::string& label) {
  text() += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\" "
      "fill-opacity=\"{}\" stroke=\"#fff\" stroke-width=\"{}\"><title>{}</title></rect>\n",
      kColumn, top, kColumnWidth, height, colour, opacity, height > 4 ? 0.5 : 0, xml(label));
  if (height >= kLabelHeight) {
    const std::string shown =
        label.size() > kLongestLabel ? label.substr(0, kLongestLabel - 3) + "..." : label;
    text() += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"13\">{}</text>\n",
                          kColumn + kColumnWidth + 8, top + height / 2 + 5, xml(shown));
  }
  top += height;
}

// The blocks of the peak one above the other, the largest on top; those that would be lower than a
// pixel together, for each colour.
void Picture::peak_column() {
  if (peak_.empty()) return;
  const auto bytes_of = [&](std::uint32_t block) {
    return static_cast<double>(lifetimes_.blocks[block].bytes.count);
  };
  std::vector<std::uint32_t> sorted = peak_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes_of(a) > bytes_of(b); });
  struct Small {
    std::uint64_t blocks = 0;
    Bytes bytes;
  };
  std::vector<Small> small(colours_.classes().size());
  const double a_pixel = static_cast<double>(lifetimes_.peak_live.live.count) / kPlotHeight;
  double large = 0;
  for (const std::uint32_t block : sorted) {
    if (bytes_of(block) >= a_pixel) {
      large += bytes_of(block);
      continue;
    }
    Small& one = small[colours_.class_of(block)];
    ++one.blocks;
    one.bytes += lifetimes_.blocks[block].bytes;
  }
  const auto low = [&](const Small& one) {
    return std::max(kPixel, static_cast<double>(one.bytes.count) / a_pixel);
  };
  double left = kPlotHeight;
  for (const Small& one : small) left -= one.blocks > 0 ? low(one) : 0;
  text() += fmt::format(
      "<text x=\"{0:.1f}\" y=\"{1:.1f}\" font-weight=\"bold\">At the peak: {2} in {3} "
      "blocks</text>\n",
      kColumn, kTop - 12, in_words(lifetimes_.peak_live.live), peak_.size());
  double top = kTop;
  for (const std::uint32_t block : sorted) {
    if (bytes_of(block) < a_pixel) break;
    const std::string& name = colours_.classes()[colours_.class_of(block)].first;
    const std::string size = in_words(lifetimes_.blocks[block].bytes);
    column_part(top, bytes_of(block) / large * left, colours_.colour_of(block),
                colours_.opacity_of(block),
                colours_.are_by_size() ? size : fmt::format("{}, {}", size, name));
  }
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (small[i].blocks == 0) continue;
    const auto& [name, colour] = colours_.classes()[i];
    column_part(
        top, low(small[i]), colour, 1,
        fmt::format("{} in {} smaller, {}", in_words(small[i].bytes), small[i].blocks, name));
  }
}

std::vector<std::uint32_t> Picture::chosen() const {
  std::vector<std::uint32_t> all(lifetimes_.blocks.size());
  std::iota(all.begin(), all.end(), 0U);
  if (all.size() <= 2 * kLargest) return all;
  const auto choose = [&](std::size_t from, const auto& size_of) {
    std::nth_element(all.begin() + static_cast<std::ptrdiff_t>(from),
                     all.begin() + static_cast<std::ptrdiff_t>(from + kLargest), all.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                       const double size_a = size_of(lifetimes_.blocks[a]);
                       const double size_b = size_of(lifetimes_.blocks[b]);
                       return size_a != size_b ? size_a > size_b : a < b;
                     });
  };
  choose(0,
         [](const BlockLifetime& lifetime) { return static_cast<double>(lifetime.bytes.count); });
  choose(kLargest, [](const BlockLifetime& lifetime) {
    return static_cast<double>(lifetime.bytes.count) *
           static_cast<double>((lifetime.end - lifetime.begin).count);
  });
  all.resize(2 * kLargest);
  all.insert(all.end(), peak_.begin(), peak_.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// In a pile: a new block goes on top, and what lies on one that goes comes down.
std::vector<Area> Picture::areas() const {
  std::vector<Area> areas;
  std::vector<std::pair<std::uint64_t, std::size_t>> changes;  // by event
  for (const std::uint32_t block : chosen()) {
    const BlockLifetime& lifetime = lifetimes_.blocks[block];
    changes.emplace_back(lifetime.begin_event, areas.size());
    if (!lifetime.live_at_end) {
      // One whose end is not known ends when the next one comes, at the latest.
      const std::uint32_t next = lifetime.reused_by;
      const bool known = lifetime.end_event != BlockLifetime::kNone;
      if (known || next != BlockLifetime::kNone) {
        changes.emplace_back(known ? lifetime.end_event : lifetimes_.blocks[next].begin_event,
                             areas.size());
      }
    }
    areas.push_back({block, &lifetime, {}});
  }
  std::sort(changes.begin(), changes.end());
  const std::size_t until_peak = events_at(lifetimes_.peak_live, recording_);
  const double peak_right = x(lifetimes_.peak_live.time) + 2 * kPixel;
  std::vector<std::pair<std::size_t, double>> pile;  // area, offset
  double top = 0;
  for (const auto& [event, area] : changes) {
    const BlockLifetime& lifetime = *areas[area].lifetime;
    const auto bytes = static_cast<double>(lifetime.bytes.count);
    if (areas[area].edge.empty()) {
      areas[area].edge.emplace_back(x(lifetime.begin), top);
      pile.emplace_back(area, top);
      top += bytes;
      continue;
    }
    auto above = std::find_if(pile.begin(), pile.end(),
                              [area = area](const auto& each) { return each.first == area; });
    for (above = pile.erase(above); above != pile.end(); ++above) {
      above->second -= bytes;
      auto& edge = areas[above->first].edge;
      if (std::abs(edge.back().second - above->second) / height_ * kPlotHeight < kVisible) continue;
      double at = x(lifetime.end);
      // However soon it comes down, where it lay at the peak is seen.
      if (is_of_peak(areas[above->first].block) && event >= until_peak)
        at = std::max(at, peak_right);
      if (edge.size() > 1 && at - edge.back().first < kVisible) {
        edge.back().second = above->second;
      } else {
        edge.emplace_back(at, above->second);
      }
    }
    top -= bytes;
  }
  return areas;
}

void Picture::draw(const Area& area) {
  const BlockLifetime& lifetime = *area.lifetime;
  const double narrowest = is_of_peak(area.block) ? 2 * kPixel : kPixel;
  const double end =
      std::max({x(lifetime.end), area.edge.front().first + narrowest, area.edge.back().first});
  const auto bytes = static_cast<double>(lifetime.bytes.count);
  std::string bottom = fmt::format("M{:.1f} {:.1f}", area.edge[0].first, y(area.edge[0].second));
  std::string top;
  for (std::size_t i = 0; i < area.edge.size(); ++i) {
    const double until = i + 1 < area.edge.size() ? area.edge[i + 1].first : end;
    bottom += fmt::format("V{:.1f}H{:.1f}", y(area.edge[i].second), until);
  }
  for (std::size_t i = area.edge.size(); i-- > 0;) {
    top += fmt::format("V{:.1f}H{:.1f}", y(area.edge[i].second + bytes), area.edge[i].first);
  }
  // A thin line of the background's colour, where there is room for one, tells neighbours apart.
  const bool is_large =
      end - area.edge.front().first > 4 && bytes / height_ * kPlotHeight > 3 * kPixel;
  const double line = is_large ? 0.3 : 0;
  text() += fmt::format(
      "<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"{}\" stroke=\"#fff\" stroke-width=\"{}\">"
      "<title>{}</title></path>\n",
      bottom, top, colours_.colour_of(area.block), colours_.opacity_of(area.block), line,
      xml(fmt::format(
          "block {}: {} on stream {}, {} to {}{} {}", area.block, in_words(lifetime.bytes),
          stream_text(lifetime.stream), in_words(lifetime.begin), in_words(lifetime.end),
          lifetime.live_at_end ? " (the end)" : "", innermost(recording_, lifetime.stack))));
  file_.relieve();
}

}  // namespace

void write_svg(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file) {
  Picture(recording, lifetimes, file).run();
}

}  // namespace weir
