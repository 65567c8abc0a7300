#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "look/exporters.h"
#include "look/streams.h"
#include "look/svg_parts.h"
#include "replay/units.h"

namespace weir {
namespace {

constexpr double kWidth = 1600, kHeight = 900;
constexpr double kLeft = 100, kRight = 20, kTop = 80, kBottom = 60;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// Blocks that are drawn one by one: so many of the largest, and of those with the most area.
constexpr std::size_t kLargest = 1000;
constexpr double kVisible = 0.3;  // of a pixel: smaller steps are not drawn

// A block's bottom edge over time: it comes down when a block below it goes.
struct Area {
  const BlockLifetime* lifetime;
  std::vector<std::pair<double, double>> edge;  // x; the offset in bytes from there on
};

class Picture {
 public:
  Picture(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file)
      : recording_(recording), lifetimes_(lifetimes), file_(file) {
    length_ =
        static_cast<double>(std::max<std::int64_t>((recording.end() - recording.begin()).count, 1));
    const Bytes most = std::max(lifetimes.peak_live.live, lifetimes.peak_reserved.reserved);
    height_ = std::max(static_cast<double>(most.count) * 1.03, 1.0);
  }

  void run() {
    const std::string name = recording_.program.empty() ? recording_.source : recording_.program;
    text() += svg_begin(
        kWidth, kHeight,
        fmt::format("{}: peak live {}, peak reserved {}", name, in_words(lifetimes_.peak_live.live),
                    in_words(lifetimes_.peak_reserved.reserved)));
    names();
    grid();
    live();
    for (const Area& area : areas()) draw(area);
    reserved();
    text() += "</svg>\n";
  }

 private:
  std::string& text() { return file_.text(); }
  double x(Nanoseconds time) const {
    return kLeft + static_cast<double>((time - recording_.begin()).count) / length_ * kPlotWidth;
  }
  double y(double bytes) const { return kHeight - kBottom - bytes / height_ * kPlotHeight; }

  void names();
  void grid();
  void live();
  void reserved();
  std::string steps(Bytes MemoryPoint::*value) const;
  std::vector<std::uint32_t> chosen() const;
  std::vector<Area> areas() const;
  void draw(const Area& area);

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  OutputFile& file_;
  double length_, height_;
};

void Picture::names() {
  auto all = stream_names(lifetimes_.streams);
  if (lifetimes_.blocks.size() > 2 * kLargest) all.emplace_back("smaller blocks", "#bbb");
  all.emplace_back("reserved", "#000");
  text() += legend(kLeft, 60, all);
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
  const std::vector<MemoryPoint>& points = lifetimes_.memory;
  for (std::size_t i = 0; i < points.size();) {
    const double column = std::floor(x(points[i].time));
    std::uint64_t lowest = UINT64_MAX, highest = 0, last = 0;
    const double at = x(points[i].time);
    for (; i < points.size() && std::floor(x(points[i].time)) == column; ++i) {
      last = (points[i].*value).count;
      lowest = std::min(lowest, last);
      highest = std::max(highest, last);
    }
    path += fmt::format("H{:.1f}", at);
    if (highest != last) path += fmt::format("V{:.1f}", y(static_cast<double>(highest)));
    if (lowest != last) path += fmt::format("V{:.1f}", y(static_cast<double>(lowest)));
    path += fmt::format("V{:.1f}", y(static_cast<double>(last)));
  }
  return path + fmt::format("H{:.1f}", kWidth - kRight);
}

void Picture::live() {
  text() += fmt::format("<path d=\"M{:.1f} {:.1f}{}V{:.1f}Z\" fill=\"#bbb\" stroke=\"#bbb\"/>\n",
                        kLeft, y(0), steps(&MemoryPoint::live), y(0));
}

void Picture::reserved() {
  const double first = static_cast<double>(lifetimes_.memory.front().reserved.count);
  text() += fmt::format(
      "<path d=\"M{:.1f} {:.1f}{}\" fill=\"none\" stroke=\"#000\" stroke-width=\"1.5\"/>\n", kLeft,
      y(first), steps(&MemoryPoint::reserved));
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
    areas.push_back({&lifetime, {}});
  }
  std::sort(changes.begin(), changes.end());
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
      if (edge.size() > 1 && x(lifetime.end) - edge.back().first < kVisible) {
        edge.back().second = above->second;
      } else {
        edge.emplace_back(x(lifetime.end), above->second);
      }
    }
    top -= bytes;
  }
  return areas;
}

void Picture::draw(const Area& area) {
  const BlockLifetime& lifetime = *area.lifetime;
  const double end = std::max(x(lifetime.end), area.edge.front().first + kVisible);
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
  const auto block = static_cast<std::size_t>(&lifetime - lifetimes_.blocks.data());
  constexpr std::array<double, 3> kShades = {1.0, 0.8, 0.6};
  // A thin line of the background's colour, where there is room for one, tells neighbours apart.
  const double line = end - area.edge.front().first > 4 ? 0.3 : 0;
  text() += fmt::format(
      "<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"{}\" stroke=\"#fff\" stroke-width=\"{}\">"
      "<title>{}</title></path>\n",
      bottom, top, kColours[colour_of(lifetime.stream, lifetimes_.streams)], kShades[block % 3],
      line,
      xml(fmt::format("block {}: {} on stream {}, {} to {}{} {}", block, in_words(lifetime.bytes),
                      stream_text(lifetime.stream), in_words(lifetime.begin),
                      in_words(lifetime.end), lifetime.live_at_end ? " (the end)" : "",
                      innermost(recording_, lifetime.stack))));
  file_.relieve();
}

}  // namespace

void write_svg(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file) {
  Picture(recording, lifetimes, file).run();
}

}  // namespace weir
