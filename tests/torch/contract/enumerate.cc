// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/enumerate.h"

#include <set>
#include <string>
#include <utility>

#include "tests/torch/contract/composer.h"

namespace weir::contract {
namespace {

constexpr Bytes kSize = 64_MiB;
constexpr std::uint32_t kMain = 0, kSide = 1, kThird = 2, kReader = 3;

// The program in the making, and what its parts share.
struct Scene : Composer {
  explicit Scene(Program& program) : Composer(program, nullptr) {}

  std::uint32_t home = kSide;  // the stream that the tensor was allocated for
  std::uint32_t tensor = 0;
  std::uint32_t graph = 0;
  std::uint32_t pool = 0;
  std::uint32_t reader = kMain;
  Bytes bytes = kSize;
};

// A part says whether it could be made.
struct Part {
  const char* name;
  bool (*make)(Scene&);
};

bool create(Scene& s) {
  s.tensor = s.allocate(s.home, s.bytes);
  return s.tensor != 0;
}

bool create_and_write(Scene& s) { return create(s) && s.write(s.home, s.tensor); }

const std::vector<Part> kCreators = {
    {"eager", create_and_write},
    {"small",
     [](Scene& s) {
       s.bytes = 64_KiB;
       return create_and_write(s);
     }},
    {"external stream",
     [](Scene& s) {
       s.home = s.make_stream();
       return create_and_write(s);
     }},
    {"MemPool",
     [](Scene& s) {
       s.pool = s.make_pool();
       return s.enter_pool(s.pool, s.home) && create_and_write(s) && s.leave_pool(s.pool);
     }},
    {"MemPool in use",
     [](Scene& s) {
       s.pool = s.make_pool();
       return s.enter_pool(s.pool, s.home) && create_and_write(s);
     }},
    {"warm-up in a graph's pool",
     [](Scene& s) {
       s.pool = s.make_pool();
       if (!s.enter_pool(s.pool, s.home) || !create_and_write(s) || !s.leave_pool(s.pool)) {
         return false;
       }
       const std::uint32_t graph = s.begin_capture(kThird, s.pool);
       const std::uint32_t output = s.allocate(kThird, kSize);
       return s.write(kThird, output) && s.end_capture(graph) && s.drop_pool(s.pool);
     }},
    {"bare handle",
     [](Scene& s) {
       s.tensor = s.allocate(s.home, s.bytes, /*bare=*/true);
       return s.tensor != 0 && s.write(s.home, s.tensor);
     }},
    {"output of a paused graph",
     [](Scene& s) {
       s.graph = s.begin_capture(s.home);
       s.pool = 1;
       const std::uint32_t scratch = s.allocate(s.home, s.bytes);
       return s.write(s.home, scratch) && s.pause_pool(s.graph) && s.resume_pool(s.graph) &&
              s.drop(scratch) && create_and_write(s) && s.end_capture(s.graph) &&
              s.replay(s.graph, kMain);
     }},
    {"after a failed capture",
     [](Scene& s) {
       const std::uint32_t graph = s.begin_capture(s.home);
       const std::uint32_t inside = s.allocate(s.home, s.bytes);
       return s.write(s.home, inside) && s.fail_capture(graph) && s.drop(inside) &&
              create_and_write(s);
     }},
    {"in a failed capture",
     [](Scene& s) {
       const std::uint32_t graph = s.begin_capture(s.home);
       return create(s) && s.fail_capture(graph) && s.write(s.home, s.tensor);
     }},
    {"caching off",
     [](Scene& s) { return s.set_caching(false) && create_and_write(s) && s.set_caching(true); }},
    {"output of a graph",
     [](Scene& s) {
       s.graph = s.begin_capture(s.home);
       s.pool = 1;
       const std::uint32_t scratch = s.allocate(s.home, s.bytes);
       return s.write(s.home, scratch) && create_and_write(s) && s.drop(scratch) &&
              s.end_capture(s.graph) && s.replay(s.graph, kMain);
     }},
    {"input of a graph",  // as the seed and offset of a random number generator
     [](Scene& s) {
       s.bytes = 512_B;
       s.home = kMain;
       if (!create_and_write(s)) return false;
       s.graph = s.begin_capture(kSide);
       s.pool = 1;
       const std::uint32_t output = s.allocate(kSide, kSize);
       return s.kernel(kSide, {{s.tensor, false}, {output, true}}, kSpin) && s.drop(output) &&
              s.end_capture(s.graph);
     }},
};

const std::vector<Part> kReaders = {
    {"main stream after a host wait",
     [](Scene& s) { return s.synchronize(s.home) && s.read(kMain, s.tensor, kSpin); }},
    {"another stream",
     [](Scene& s) {
       s.reader = kReader;
       return s.read(kReader, s.tensor, kSpin);
     }},
    {"another stream, recorded",
     [](Scene& s) {
       s.reader = kReader;
       return s.read(kReader, s.tensor, kSpin) && s.record_stream(s.tensor, kReader);
     }},
    {"own stream",
     [](Scene& s) {
       s.reader = s.home;
       return s.read(s.home, s.tensor, kSpin);
     }},
    {"its graph's replay",
     [](Scene& s) {
       s.reader = kReader;
       return s.graph != 0 && s.replay(s.graph, kReader);
     }},
    {"another library's graph",
     [](Scene& s) {
       s.reader = kReader;
       const std::uint32_t raw = s.begin_raw_capture(kReader);
       return s.read(kReader, s.tensor, kSpin) && s.end_capture(raw) && s.replay(raw, kReader);
     }},
    {"another graph's replay",
     [](Scene& s) {
       s.reader = kReader;
       const std::uint32_t graph = s.begin_capture(kReader);
       return graph != 0 && s.read(kReader, s.tensor, kSpin) && s.end_capture(graph) &&
              s.replay(graph, kReader);
     }},
};

const std::vector<Part> kDroppers = {
    {"dropped", [](Scene& s) { return s.drop(s.tensor); }},
    {"synchronised back and dropped",
     [](Scene& s) { return s.order(s.home, s.reader) && s.drop(s.tensor); }},
    {"dropped and synchronised back",
     [](Scene& s) { return s.drop(s.tensor) && s.order(s.home, s.reader); }},
    {"dropped before its graph",
     [](Scene& s) { return s.graph != 0 && s.drop(s.tensor) && s.drop_graph(s.graph); }},
    {"dropped after its graph",
     [](Scene& s) { return s.graph != 0 && s.drop_graph(s.graph) && s.drop(s.tensor); }},
    {"dropped before its MemPool",
     [](Scene& s) {
       return s.graph == 0 && s.pool != 0 && s.drop(s.tensor) && s.drop_pool(s.pool);
     }},
    {"dropped after its MemPool",
     [](Scene& s) {
       return s.graph == 0 && s.pool != 0 && s.drop_pool(s.pool) && s.drop(s.tensor);
     }},
    {"dropped in a capture of its reader",
     [](Scene& s) {
       const std::uint32_t graph = s.begin_capture(s.reader);
       if (graph == 0) return false;
       const std::uint32_t inside = s.allocate(s.reader, s.bytes);
       return s.write(s.reader, inside) && s.drop(s.tensor) && s.end_capture(graph);
     }},
    {"dropped, and its stream destroyed",
     [](Scene& s) {
       return s.synchronize(s.home) && s.drop(s.tensor) && s.destroy_stream(s.home);
     }},
    {"dropped after its stream was destroyed",
     [](Scene& s) {
       return s.synchronize(s.home) && s.destroy_stream(s.home) && s.drop(s.tensor);
     }},
};

bool allocate_and_write(Scene& s, std::uint32_t stream, Bytes bytes) {
  const std::uint32_t made = s.allocate(stream, bytes);
  return made != 0 && s.write(stream, made);
}

bool allocate_in_a_capture(Scene& s, std::uint32_t stream, std::uint32_t pool) {
  const std::uint32_t graph = s.begin_capture(stream, pool);
  if (graph == 0) return false;
  const std::uint32_t made = s.allocate(stream, s.bytes);
  return s.write(stream, made) && s.end_capture(graph) && s.replay(graph, stream);
}

// Each half of a capture drops what the one before wrote.
bool allocate_in_a_paused_capture(Scene& s, std::uint32_t stream) {
  const std::uint32_t graph = s.begin_capture(stream);
  if (graph == 0) return false;
  std::uint32_t before = 0;
  for (int half = 0; half < 3; ++half) {
    const std::uint32_t made = s.allocate(stream, s.bytes);
    if (!s.write(stream, made) || !s.pause_pool(graph) || !s.resume_pool(graph) ||
        (before != 0 && !s.drop(before))) {
      return false;
    }
    before = made;
  }
  return s.end_capture(graph) && s.replay(graph, stream);
}

bool allocate_in_a_pool(Scene& s, std::uint32_t stream, std::uint32_t pool) {
  return s.enter_pool(pool, stream) && allocate_and_write(s, stream, s.bytes) && s.leave_pool(pool);
}

// Another library captures a stream, while PyTorch allocates for `stream`.
bool allocate_beside_a_raw_capture(Scene& s, std::uint32_t captured, std::uint32_t stream) {
  const std::uint32_t raw = s.begin_raw_capture(captured);
  return raw != 0 && allocate_and_write(s, stream, s.bytes) && s.kernel(captured, {}, kShort) &&
         s.end_capture(raw);
}

const std::vector<Part> kDisturbers = {
    {"another stream allocates", [](Scene& s) { return allocate_and_write(s, kThird, s.bytes); }},
    {"the main stream allocates", [](Scene& s) { return allocate_and_write(s, kMain, s.bytes); }},
    {"its stream allocates", [](Scene& s) { return allocate_and_write(s, s.home, s.bytes); }},
    {"the reader's stream allocates",
     [](Scene& s) { return allocate_and_write(s, kReader, s.bytes); }},
    {"another stream allocates more",
     [](Scene& s) { return allocate_and_write(s, kThird, s.bytes * 2); }},
    {"another stream allocates small ones",
     [](Scene& s) {
       bool made = true;
       for (int i = 0; i < 6; ++i) made = made && allocate_and_write(s, kThird, 4_KiB);
       return made;
     }},
    {"another thread allocates",
     [](Scene& s) {
       s.set_thread(1);
       return allocate_and_write(s, kThird, s.bytes);
     }},
    {"a MemPool on another stream",
     [](Scene& s) { return allocate_in_a_pool(s, kThird, s.make_pool()); }},
    {"a MemPool on its stream",
     [](Scene& s) { return allocate_in_a_pool(s, s.home, s.make_pool()); }},
    {"its pool on another stream",
     [](Scene& s) { return s.pool != 0 && allocate_in_a_pool(s, kThird, s.pool); }},
    {"a capture on another stream", [](Scene& s) { return allocate_in_a_capture(s, kThird, 0); }},
    {"a capture on its stream", [](Scene& s) { return allocate_in_a_capture(s, s.home, 0); }},
    {"a capture with its pool",
     [](Scene& s) { return s.pool != 0 && allocate_in_a_capture(s, kThird, s.pool); }},
    {"a capture on another stream, paused twice",
     [](Scene& s) { return allocate_in_a_paused_capture(s, kThird); }},
    {"a capture that fails",
     [](Scene& s) {
       const std::uint32_t graph = s.begin_capture(kThird);
       if (graph == 0) return false;
       const std::uint32_t inside = s.allocate(kThird, s.bytes);
       return s.write(kThird, inside) && s.fail_capture(graph) &&
              allocate_in_a_capture(s, kThird, 0);
     }},
    {"a capture that never begins",
     [](Scene& s) {
       return s.refuse_capture(kThird, /*by_driver=*/true) && allocate_and_write(s, kMain, s.bytes);
     }},
    {"a capture begun within another one",
     [](Scene& s) {
       const std::uint32_t graph = s.begin_capture(kThird);
       return graph != 0 && s.refuse_capture(kThird, /*by_driver=*/false) &&
              allocate_and_write(s, kThird, s.bytes) && s.end_capture(graph) &&
              allocate_in_a_capture(s, kThird, 0);
     }},
    {"empty_cache",
     [](Scene& s) { return s.empty_cache() && allocate_and_write(s, kThird, s.bytes); }},
    {"a lower limit",
     [](Scene& s) { return s.set_limit(96_MiB) && allocate_and_write(s, kThird, s.bytes); }},
    {"caching off",
     [](Scene& s) {
       if (!s.set_caching(false)) return false;
       const std::uint32_t made = s.allocate(kThird, s.bytes);
       return s.write(kThird, made) && s.drop(made) && s.set_caching(true);
     }},
    {"a raw capture of its stream",
     [](Scene& s) { return allocate_beside_a_raw_capture(s, s.home, kThird); }},
    {"a raw capture of the reader's stream",
     [](Scene& s) { return allocate_beside_a_raw_capture(s, s.reader, kThird); }},
    {"a raw capture of another stream",
     [](Scene& s) { return allocate_beside_a_raw_capture(s, kThird, kMain); }},
};

}  // namespace

std::vector<Program> enumerated_programs() {
  std::vector<Program> programs;
  std::set<std::string> seen;
  for (const Part& creator : kCreators) {
    for (const Part& reader : kReaders) {
      for (const Part& dropper : kDroppers) {
        for (const Part& disturber : kDisturbers) {
          Program program;
          Scene s(program);
          if (!creator.make(s) || !reader.make(s) || !dropper.make(s) || !disturber.make(s))
            continue;
          s.finish();
          if (s.legality().unfinished()) continue;
          if (!seen.insert(describe(program)).second) continue;
          program.name = std::string(creator.name) + "; " + reader.name + "; " + dropper.name +
                         "; " + disturber.name;
          programs.push_back(std::move(program));
        }
      }
    }
  }
  return programs;
}

}  // namespace weir::contract
