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
constexpr std::size_t kBlocks = 500;  // that are drawn one by one: the largest
constexpr double kVisible = 0.3;      // of a pixel: smaller steps are not drawn

// A block's bottom edge over time: it comes down when a block below it goes.
struct Area {
  const Life* life;
  std::vector<std::pair<double, double>> edge;  // x; the offset in bytes from there on
};

class Picture {
 public:
  Picture(const Recording& recording, const Lives& lives, OutputFile& file)
      : recording_(recording), lives_(lives), file_(file) {
    length_ =
        static_cast<double>(std::max<std::int64_t>((recording.end() - recording.begin()).count, 1));
    const Bytes most = std::max(lives.peak_live.live, lives.peak_reserved.reserved);
    height_ = std::max(static_cast<double>(most.count) * 1.03, 1.0);
  }

  void run() {
    const std::string name = recording_.program.empty() ? recording_.source : recording_.program;
    text() += svg_begin(
        kWidth, kHeight,
        fmt::format("{}: peak live {}, peak reserved {}", name, in_words(lives_.peak_live.live),
                    in_words(lives_.peak_reserved.reserved)));
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
  std::vector<Area> areas() const;
  void draw(const Area& area);

  const Recording& recording_;
  const Lives& lives_;
  OutputFile& file_;
  double length_, height_;
};

void Picture::names() {
  auto all = stream_names(lives_.streams);
  if (lives_.blocks.size() > kBlocks) all.emplace_back("smaller blocks", "#bbb");
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
  const std::vector<MemoryPoint>& points = lives_.memory;
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
  text() += fmt::format("<path d=\"M{:.1f} {:.1f}{}V{:.1f}Z\" fill=\"#bbb\"/>\n", kLeft, y(0),
                        steps(&MemoryPoint::live), y(0));
}

void Picture::reserved() {
  const double first = static_cast<double>(lives_.memory.front().reserved.count);
  text() += fmt::format(
      "<path d=\"M{:.1f} {:.1f}{}\" fill=\"none\" stroke=\"#000\" stroke-width=\"1.5\"/>\n", kLeft,
      y(first), steps(&MemoryPoint::reserved));
}

// The largest blocks, in a pile: a new one goes on top, and what lies on one that goes comes down.
std::vector<Area> Picture::areas() const {
  std::vector<std::uint32_t> largest(lives_.blocks.size());
  std::iota(largest.begin(), largest.end(), 0U);
  if (largest.size() > kBlocks) {
    std::nth_element(largest.begin(), largest.begin() + kBlocks, largest.end(),
                     [this](std::uint32_t a, std::uint32_t b) {
                       const Bytes bytes_a = lives_.blocks[a].bytes;
                       const Bytes bytes_b = lives_.blocks[b].bytes;
                       return bytes_a != bytes_b ? bytes_a > bytes_b : a < b;
                     });
    largest.resize(kBlocks);
  }
  std::vector<Area> areas;
  std::vector<std::pair<std::uint64_t, std::size_t>> changes;  // by event
  for (const std::uint32_t block : largest) {
    const Life& life = lives_.blocks[block];
    changes.emplace_back(life.begin_event, areas.size());
    if (!life.live_at_end) {
      // One whose end is not known ends when the next one comes, at the latest.
      const std::uint32_t next = life.reused_by;
      const bool known = life.end_event != Life::kNone;
      if (known || next != Life::kNone) {
        changes.emplace_back(known ? life.end_event : lives_.blocks[next].begin_event,
                             areas.size());
      }
    }
    areas.push_back({&life, {}});
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::pair<std::size_t, double>> pile;  // area, offset
  double top = 0;
  for (const auto& [event, area] : changes) {
    const Life& life = *areas[area].life;
    const auto bytes = static_cast<double>(life.bytes.count);
    if (areas[area].edge.empty()) {
      areas[area].edge.emplace_back(x(life.begin), top);
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
      if (edge.size() > 1 && x(life.end) - edge.back().first < kVisible) {
        edge.back().second = above->second;
      } else {
        edge.emplace_back(x(life.end), above->second);
      }
    }
    top -= bytes;
  }
  return areas;
}

void Picture::draw(const Area& area) {
  const Life& life = *area.life;
  const double end = std::max(x(life.end), area.edge.front().first + kVisible);
  const auto bytes = static_cast<double>(life.bytes.count);
  std::string bottom = fmt::format("M{:.1f} {:.1f}", area.edge[0].first, y(area.edge[0].second));
  std::string top;
  for (std::size_t i = 0; i < area.edge.size(); ++i) {
    const double until = i + 1 < area.edge.size() ? area.edge[i + 1].first : end;
    bottom += fmt::format("V{:.1f}H{:.1f}", y(area.edge[i].second), until);
  }
  for (std::size_t i = area.edge.size(); i-- > 0;) {
    top += fmt::format("V{:.1f}H{:.1f}", y(area.edge[i].second + bytes), area.edge[i].first);
  }
  const auto block = static_cast<std::size_t>(&life - lives_.blocks.data());
  constexpr std::array<double, 3> kShades = {1.0, 0.8, 0.6};
  // Stroked by a background line: neighbours of one colour are told apart.
  text() += fmt::format(
      "<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"{}\" stroke=\"#fff\" stroke-width=\"0.3\">"
      "<title>{}</title></path>\n",
      bottom, top, kColours[colour_of(life.stream, lives_.streams)], kShades[block % 3],
      xml(fmt::format("block {}: {} on stream {}, {} to {}{} {}", block, in_words(life.bytes),
                      stream_text(life.stream), in_words(life.begin), in_words(life.end),
                      life.live_at_end ? " (the end)" : "", innermost(recording_, life.stack))));
  file_.relieve();
}

}  // namespace

void write_svg(const Recording& recording, const Lives& lives, OutputFile& file) {
  Picture(recording, lives, file).run();
}

}  // namespace weir
