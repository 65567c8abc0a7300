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

// What the parts of a program share.
struct Scene {
  Composer make;
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

bool create(Scene& scene) {
  scene.tensor = scene.make.allocate(scene.home, scene.bytes);
  return scene.tensor != 0;
}

bool create_and_write(Scene& scene) {
  return create(scene) && scene.make.write(scene.home, scene.tensor);
}

const std::vector<Part> kCreators = {
    {"eager", create_and_write},
    {"small",
     [](Scene& scene) {
       scene.bytes = 64_KiB;
       return create_and_write(scene);
     }},
    {"external stream",
     [](Scene& scene) {
       scene.home = scene.make.make_stream();
       return create_and_write(scene);
     }},
    {"MemPool",
     [](Scene& scene) {
       scene.pool = scene.make.make_pool();
       return scene.make.enter_pool(scene.pool, scene.home) && create_and_write(scene) &&
              scene.make.leave_pool(scene.pool);
     }},
    {"MemPool in use",
     [](Scene& scene) {
       scene.pool = scene.make.make_pool();
       return scene.make.enter_pool(scene.pool, scene.home) && create_and_write(scene);
     }},
    {"warm-up in a graph's pool",
     [](Scene& scene) {
       scene.pool = scene.make.make_pool();
       if (!scene.make.enter_pool(scene.pool, scene.home) || !create_and_write(scene) ||
           !scene.make.leave_pool(scene.pool)) {
         return false;
       }
       const std::uint32_t graph = scene.make.begin_capture(kThird, scene.pool);
       const std::uint32_t output = scene.make.allocate(kThird, kSize);
       return scene.make.write(kThird, output) && scene.make.end_capture(graph) &&
              scene.make.drop_pool(scene.pool);
     }},
    {"bare handle",
     [](Scene& scene) {
       scene.tensor = scene.make.allocate(scene.home, scene.bytes, /*bare=*/true);
       return scene.tensor != 0 && scene.make.write(scene.home, scene.tensor);
     }},
    {"output of a paused graph",
     [](Scene& scene) {
       scene.graph = scene.make.begin_capture(scene.home);
       scene.pool = 1;
       const std::uint32_t scratch = scene.make.allocate(scene.home, scene.bytes);
       return scene.make.write(scene.home, scratch) && scene.make.pause_pool(scene.graph) &&
              scene.make.resume_pool(scene.graph) && scene.make.drop(scratch) &&
              create_and_write(scene) && scene.make.end_capture(scene.graph) &&
              scene.make.replay(scene.graph, kMain);
     }},
    {"after a failed capture",
     [](Scene& scene) {
       const std::uint32_t graph = scene.make.begin_capture(scene.home);
       const std::uint32_t inside = scene.make.allocate(scene.home, scene.bytes);
       return scene.make.write(scene.home, inside) && scene.make.fail_capture(graph) &&
              scene.make.drop(inside) && create_and_write(scene);
     }},
    {"in a failed capture",
     [](Scene& scene) {
       const std::uint32_t graph = scene.make.begin_capture(scene.home);
       return create(scene) && scene.make.fail_capture(graph) &&
              scene.make.write(scene.home, scene.tensor);
     }},
    {"caching off",
     [](Scene& scene) {
       return scene.make.set_caching(false) && create_and_write(scene) &&
              scene.make.set_caching(true);
     }},
    {"output of a graph",
     [](Scene& scene) {
       scene.graph = scene.make.begin_capture(scene.home);
       scene.pool = 1;
       const std::uint32_t scratch = scene.make.allocate(scene.home, scene.bytes);
       return scene.make.write(scene.home, scratch) && create_and_write(scene) &&
              scene.make.drop(scratch) && scene.make.end_capture(scene.graph) &&
              scene.make.replay(scene.graph, kMain);
     }},
    {"input of a graph",  // as the seed and offset of a random number generator
     [](Scene& scene) {
       scene.bytes = 512_B;
       scene.home = kMain;
       if (!create_and_write(scene)) return false;
       scene.graph = scene.make.begin_capture(kSide);
       scene.pool = 1;
       const std::uint32_t output = scene.make.allocate(kSide, kSize);
       return scene.make.kernel(kSide, {{scene.tensor, false}, {output, true}}, kSpin) &&
              scene.make.drop(output) && scene.make.end_capture(scene.graph);
     }},
};

const std::vector<Part> kReaders = {
    {"main stream after a host wait",
     [](Scene& scene) {
       return scene.make.synchronize(scene.home) && scene.make.read(kMain, scene.tensor, kSpin);
     }},
    {"another stream",
     [](Scene& scene) {
       scene.reader = kReader;
       return scene.make.read(kReader, scene.tensor, kSpin);
     }},
    {"another stream, recorded",
     [](Scene& scene) {
       scene.reader = kReader;
       return scene.make.read(kReader, scene.tensor, kSpin) &&
              scene.make.record_stream(scene.tensor, kReader);
     }},
    {"own stream",
     [](Scene& scene) {
       scene.reader = scene.home;
       return scene.make.read(scene.home, scene.tensor, kSpin);
     }},
    {"its graph's replay",
     [](Scene& scene) {
       scene.reader = kReader;
       return scene.graph != 0 && scene.make.replay(scene.graph, kReader);
     }},
    {"another library's graph",
     [](Scene& scene) {
       scene.reader = kReader;
       const std::uint32_t raw = scene.make.begin_raw_capture(kReader);
       return scene.make.read(kReader, scene.tensor, kSpin) && scene.make.end_capture(raw) &&
              scene.make.replay(raw, kReader);
     }},
    {"another graph's replay",
     [](Scene& scene) {
       scene.reader = kReader;
       const std::uint32_t graph = scene.make.begin_capture(kReader);
       return graph != 0 && scene.make.read(kReader, scene.tensor, kSpin) &&
              scene.make.end_capture(graph) && scene.make.replay(graph, kReader);
     }},
};

const std::vector<Part> kDroppers = {
    {"dropped", [](Scene& scene) { return scene.make.drop(scene.tensor); }},
    {"synchronised back and dropped",
     [](Scene& scene) {
       return scene.make.order(scene.home, scene.reader) && scene.make.drop(scene.tensor);
     }},
    {"dropped and synchronised back",
     [](Scene& scene) {
       return scene.make.drop(scene.tensor) && scene.make.order(scene.home, scene.reader);
     }},
    {"dropped before its graph",
     [](Scene& scene) {
       return scene.graph != 0 && scene.make.drop(scene.tensor) &&
              scene.make.drop_graph(scene.graph);
     }},
    {"dropped after its graph",
     [](Scene& scene) {
       return scene.graph != 0 && scene.make.drop_graph(scene.graph) &&
              scene.make.drop(scene.tensor);
     }},
    {"dropped before its MemPool",
     [](Scene& scene) {
       return scene.graph == 0 && scene.pool != 0 && scene.make.drop(scene.tensor) &&
              scene.make.drop_pool(scene.pool);
     }},
    {"dropped after its MemPool",
     [](Scene& scene) {
       return scene.graph == 0 && scene.pool != 0 && scene.make.drop_pool(scene.pool) &&
              scene.make.drop(scene.tensor);
     }},
    {"dropped in a capture of its reader",
     [](Scene& scene) {
       const std::uint32_t graph = scene.make.begin_capture(scene.reader);
       if (graph == 0) return false;
       const std::uint32_t inside = scene.make.allocate(scene.reader, scene.bytes);
       return scene.make.write(scene.reader, inside) && scene.make.drop(scene.tensor) &&
              scene.make.end_capture(graph);
     }},
    {"dropped, and its stream destroyed",
     [](Scene& scene) {
       return scene.make.synchronize(scene.home) && scene.make.drop(scene.tensor) &&
              scene.make.destroy_stream(scene.home);
     }},
    {"dropped after its stream was destroyed",
     [](Scene& scene) {
       return scene.make.synchronize(scene.home) && scene.make.destroy_stream(scene.home) &&
              scene.make.drop(scene.tensor);
     }},
};

bool allocate_and_write(Scene& scene, std::uint32_t stream, Bytes bytes) {
  const std::uint32_t made = scene.make.allocate(stream, bytes);
  return made != 0 && scene.make.write(stream, made);
}

bool allocate_in_a_capture(Scene& scene, std::uint32_t stream, std::uint32_t pool) {
  const std::uint32_t graph = scene.make.begin_capture(stream, pool);
  if (graph == 0) return false;
  const std::uint32_t made = scene.make.allocate(stream, scene.bytes);
  return scene.make.write(stream, made) && scene.make.end_capture(graph) &&
         scene.make.replay(graph, stream);
}

// Each half of a capture drops what the one before wrote.
bool allocate_in_a_paused_capture(Scene& scene, std::uint32_t stream) {
  const std::uint32_t graph = scene.make.begin_capture(stream);
  if (graph == 0) return false;
  std::uint32_t before = 0;
  for (int half = 0; half < 3; ++half) {
    const std::uint32_t made = scene.make.allocate(stream, scene.bytes);
    if (!scene.make.write(stream, made) || !scene.make.pause_pool(graph) ||
        !scene.make.resume_pool(graph) || (before != 0 && !scene.make.drop(before))) {
      return false;
    }
    before = made;
  }
  return scene.make.end_capture(graph) && scene.make.replay(graph, stream);
}

bool allocate_in_a_pool(Scene& scene, std::uint32_t stream, std::uint32_t pool) {
  return scene.make.enter_pool(pool, stream) && allocate_and_write(scene, stream, scene.bytes) &&
         scene.make.leave_pool(pool);
}

// Another library captures a stream, while PyTorch allocates for `stream`.
bool allocate_beside_a_raw_capture(Scene& scene, std::uint32_t captured, std::uint32_t stream) {
  const std::uint32_t raw = scene.make.begin_raw_capture(captured);
  return raw != 0 && allocate_and_write(scene, stream, scene.bytes) &&
         scene.make.kernel(captured, {}, kShort) && scene.make.end_capture(raw);
}

const std::vector<Part> kDisturbers = {
    {"another stream allocates",
     [](Scene& scene) { return allocate_and_write(scene, kThird, scene.bytes); }},
    {"the main stream allocates",
     [](Scene& scene) { return allocate_and_write(scene, kMain, scene.bytes); }},
    {"its stream allocates",
     [](Scene& scene) { return allocate_and_write(scene, scene.home, scene.bytes); }},
    {"the reader's stream allocates",
     [](Scene& scene) { return allocate_and_write(scene, kReader, scene.bytes); }},
    {"another stream allocates more",
     [](Scene& scene) { return allocate_and_write(scene, kThird, scene.bytes * 2); }},
    {"another stream allocates small ones",
     [](Scene& scene) {
       bool made = true;
       for (int i = 0; i < 6; ++i) made = made && allocate_and_write(scene, kThird, 4_KiB);
       return made;
     }},
    {"another thread allocates",
     [](Scene& scene) {
       scene.make.set_thread(1);
       return allocate_and_write(scene, kThird, scene.bytes);
     }},
    {"a MemPool on another stream",
     [](Scene& scene) { return allocate_in_a_pool(scene, kThird, scene.make.make_pool()); }},
    {"a MemPool on its stream",
     [](Scene& scene) { return allocate_in_a_pool(scene, scene.home, scene.make.make_pool()); }},
    {"its pool on another stream",
     [](Scene& scene) { return scene.pool != 0 && allocate_in_a_pool(scene, kThird, scene.pool); }},
    {"a capture on another stream",
     [](Scene& scene) { return allocate_in_a_capture(scene, kThird, 0); }},
    {"a capture on its stream",
     [](Scene& scene) { return allocate_in_a_capture(scene, scene.home, 0); }},
    {"a capture with its pool",
     [](Scene& scene) {
       return scene.pool != 0 && allocate_in_a_capture(scene, kThird, scene.pool);
     }},
    {"a capture on another stream, paused twice",
     [](Scene& scene) { return allocate_in_a_paused_capture(scene, kThird); }},
    {"a capture that fails",
     [](Scene& scene) {
       const std::uint32_t graph = scene.make.begin_capture(kThird);
       if (graph == 0) return false;
       const std::uint32_t inside = scene.make.allocate(kThird, scene.bytes);
       return scene.make.write(kThird, inside) && scene.make.fail_capture(graph) &&
              allocate_in_a_capture(scene, kThird, 0);
     }},
    {"a capture that never begins",
     [](Scene& scene) {
       return scene.make.refuse_capture(kThird, /*by_driver=*/true) &&
              allocate_and_write(scene, kMain, scene.bytes);
     }},
    {"a capture begun within another one",
     [](Scene& scene) {
       const std::uint32_t graph = scene.make.begin_capture(kThird);
       return graph != 0 && scene.make.refuse_capture(kThird, /*by_driver=*/false) &&
              allocate_and_write(scene, kThird, scene.bytes) && scene.make.end_capture(graph) &&
              allocate_in_a_capture(scene, kThird, 0);
     }},
    {"empty_cache",
     [](Scene& scene) {
       return scene.make.empty_cache() && allocate_and_write(scene, kThird, scene.bytes);
     }},
    {"a lower limit",
     [](Scene& scene) {
       return scene.make.set_limit(96_MiB) && allocate_and_write(scene, kThird, scene.bytes);
     }},
    {"caching off",
     [](Scene& scene) {
       if (!scene.make.set_caching(false)) return false;
       const std::uint32_t made = scene.make.allocate(kThird, scene.bytes);
       return scene.make.write(kThird, made) && scene.make.drop(made) &&
              scene.make.set_caching(true);
     }},
    {"a raw capture of its stream",
     [](Scene& scene) { return allocate_beside_a_raw_capture(scene, scene.home, kThird); }},
    {"a raw capture of the reader's stream",
     [](Scene& scene) { return allocate_beside_a_raw_capture(scene, scene.reader, kThird); }},
    {"a raw capture of another stream",
     [](Scene& scene) { return allocate_beside_a_raw_capture(scene, kThird, kMain); }},
};

bool make(Scene& scene, const Part& part) { return part.make(scene); }

}  // namespace

std::vector<Program> enumerated_programs() {
  std::vector<Program> programs;
  std::set<std::string> seen;
  for (const Part& creator : kCreators) {
    for (const Part& reader : kReaders) {
      for (const Part& dropper : kDroppers) {
        for (const Part& disturber : kDisturbers) {
          Program program;
          Scene scene{.make = Composer(program, nullptr)};
          if (!make(scene, creator) || !make(scene, reader) || !make(scene, dropper) ||
              !make(scene, disturber)) {
            continue;
          }
          scene.make.finish();
          if (scene.make.legality().unfinished()) continue;
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
