#include "tests/property/concurrent_program.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "tests/property/concurrent_world.h"
#include "tests/property/oracle.h"
#include "tests/property/recorded_heap.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

using Kind = Call::Kind;

class Worker;
thread_local Worker* worker_of_this_thread = nullptr;

class Worker {
 public:
  Worker(World& world, std::uint32_t number, std::vector<Stream> shared)
      : world_(world),
        scenario_(world.scenario),
        heap_(*world.heap, world.clock, number),
        random_(world.scenario.seed * 1000 + number),
        streams_(std::move(shared)),
        first_own_(streams_.size()) {
    for (std::uint32_t i = 0; i < scenario_.own_streams; ++i) {
      streams_.push_back(world_.sim.new_stream());
    }
  }

  // One half with everybody's blocks left alive, for a look when nobody is at work; and one in
  // which all goes back.
  void operator()() {
    worker_of_this_thread = this;
    world_.started.arrive_and_wait();
    for (std::uint32_t i = 0; i < scenario_.steps / 2; ++i) step();
    world_.halfway.arrive_and_wait();
    world_.looked.arrive_and_wait();
    for (std::uint32_t i = 0; i < scenario_.steps / 2; ++i) step();
    while (!held_.empty()) give_back(pop());
    while (std::optional<Held> held = world_.exchange.take()) give_back(std::move(*held));
    worker_of_this_thread = nullptr;
  }

  void look() {
    heap_.statistics();
    heap_.snapshot();
    heap_.validate();
  }

  // With nobody at work, and every block given back: whatever was cached, and for whichever stream,
  // serves one request for all there may be, on a stream that had nothing.
  void take_everything() {
    const Bytes limit = scenario_.heap.limit > 0_B ? scenario_.heap.limit : scenario_.memory;
    const Bytes all = round_down(std::min(limit, scenario_.memory), 2_MiB);
    heap_.set_limit(scenario_.heap.limit);
    streams_.push_back(world_.sim.new_stream());
    if (!allocate(all, streams_.back())) {
      return complain("idle memory did not serve a request for all: " + heap_.last().message);
    }
    give_back(pop());
  }

  void trim_all() { heap_.trim(0_B); }
  void adopt(Held held) { give_back(std::move(held)); }

  History take_calls() { return heap_.take_calls(); }
  std::vector<std::string> take_complaints() { return std::move(complaints_); }
  std::uint64_t handed_over() const { return handed_over_; }

  // The callback of a request that found no memory: another's blocks, or this one's, go back.
  void free_something() {
    for (int i = 0; i < 4; ++i) {
      if (std::optional<Held> held = world_.exchange.take()) give_back(std::move(*held));
    }
    if (held_.size() > 1) give_back(pop());
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Stream any_stream() { return streams_[below(streams_.size())]; }
  void complain(std::string what) { complaints_.push_back(std::move(what)); }
  void expect(const Status& status, const char* what) {
    if (!status.ok()) complain(std::string(what) + ": " + status.error().message());
  }

  void step() {
    const std::uint64_t dice = below(100);
    if (scenario_.hammers && below(50) != 0) return hammer();
    if (dice < 34) {
      if (held_.size() >= scenario_.most_held) give_back(pop());
      allocate(random_size(), any_stream());
    } else if (dice < 54) {
      if (!held_.empty()) give_back(pop());
    } else if (dice < 62) {
      if (!held_.empty()) use(held_[below(held_.size())], any_stream());
    } else if (dice < 72) {
      hand_over();
    } else if (dice < 82) {
      take_over();
    } else if (dice < 85) {
      fence_many(any_stream());
    } else if (dice < 92) {
      heap_.find(random_pointer());
    } else if (dice < 94) {
      misuse();
    } else {
      now_and_then();
    }
  }

  void hammer() {
    if (held_.size() < scenario_.most_held && below(2) == 0) {
      allocate(random_size(), any_stream());
    } else if (!held_.empty()) {
      give_back(pop());
    }
  }

  void now_and_then() {
    switch (below(12)) {
      case 0:
        return heap_.trim(Bytes{below(3) * (32_MiB).count});
      case 1:
        return heap_.validate();
      case 2:
      case 3:
        return heap_.snapshot();
      case 4:
      case 5:
        return heap_.statistics();
      case 6:
        return heap_.reset_peaks();
      case 7:
        if (scenario_.limits) change_limit();
        return;
      case 8:
        if (scenario_.retires && streams_.size() > first_own_) retire();
        return;
      case 9:
        return std::this_thread::yield();
      default:
        return world_.sim.advance({static_cast<std::int64_t>(below(300'000))});
    }
  }

  // Around every border: the grain, small and large, a page, many pages.
  Bytes random_size() {
    if (!scenario_.hot.empty() && below(8) != 0) {
      return scenario_.hot[below(scenario_.hot.size())];
    }
    static constexpr std::array kBorders = {512_B, 256_KiB, 2_MiB, 32_MiB};
    switch (below(4)) {
      case 0:
        return Bytes{below(1024)};
      case 1: {
        const std::uint64_t border = kBorders[below(below(4) == 0 ? 4 : 3)].count;
        return Bytes{border - 511 + below(1023)};
      }
      case 2:
        return Bytes{1 + 2 * below(200'000)};
      default:
        return Bytes{1 + below(std::uint64_t{1} << (9 + below(15)))};
    }
  }

  bool allocate(Bytes bytes, Stream stream) {
    const Call& call = heap_.allocate(bytes, stream, world_.sim);
    if (call.error) {
      while (held_.size() > 2) give_back(pop());
      return false;
    }
    if (call.addresses.empty()) return true;  // of zero bytes: the checker sees to that
    void* const pointer = call.addresses.front().pointer();
    world_.rumours[below(world_.rumours.size())].store(Address::of(pointer).value,
                                                       std::memory_order_relaxed);
    Held held{pointer, bytes, stream, stream, {}, {}};
    if (scenario_.launches) {
      const Result<EventHandle> event = world_.sim.create_event();
      if (!event.ok()) return complain("create_event: " + event.error().message()), true;
      held.used = *event;
      write(held, stream);
    }
    held_.push_back(std::move(held));
    // So that each stream is seen with the heap that serves it.
    if (std::find(seen_.begin(), seen_.end(), stream) == seen_.end()) {
      seen_.push_back(stream);
      heap_.find(pointer);
    }
    return true;
  }

  void write(Held& held, Stream stream) {
    const Nanoseconds duration{static_cast<std::int64_t>(below(200'000))};
    const bool reads = below(4) == 0 && !(stream == held.owner);
    const Access access =
        reads ? Reads(held.pointer, held.bytes) : Writes(held.pointer, held.bytes);
    expect(world_.sim.launch(stream, access, duration), "launch");
    expect(world_.sim.record(held.used, stream), "record");
    held.used_on = stream;
  }

  // After the uses before it. On another stream than the block's, a fence is owed.
  void use(Held& held, Stream stream) {
    if (!scenario_.launches) {
      owe_fence(held, stream);
      return;
    }
    if (!(stream == held.used_on)) expect(world_.sim.wait(stream, held.used), "wait");
    write(held, stream);
    owe_fence(held, stream);
  }

  void owe_fence(Held& held, Stream stream) {
    if (stream == held.owner) return;
    if (below(4) == 0) {
      heap_.record_stream(held.pointer, stream);
      return;
    }
    if (std::find(held.unfenced.begin(), held.unfenced.end(), stream) == held.unfenced.end()) {
      held.unfenced.push_back(stream);
    }
  }

  // One fence for all blocks that owe one on `user`, and at times for others.
  void fence_many(Stream user) {
    std::vector<void*> blocks;
    for (Held& held : held_) {
      if (std::erase(held.unfenced, user) > 0 || below(8) == 0) blocks.push_back(held.pointer);
    }
    if (below(4) == 0) blocks.push_back(nullptr);
    if (!blocks.empty()) heap_.fence(blocks, user);
  }

  const Call& fence_one(void* block, Stream user) {
    return heap_.fence(std::span<void* const>(&block, 1), user);
  }

  void fence_what_is_owed(Held& held) {
    for (const Stream user : std::exchange(held.unfenced, {})) fence_one(held.pointer, user);
  }

  void give_back(Held held) {
    fence_what_is_owed(held);
    heap_.deallocate(held.pointer);
    if (scenario_.launches) expect(world_.sim.destroy_event(held.used), "destroy_event");
    // Nobody else allocates for a stream of this thread's, and addresses are never another heap's:
    // so this is a block given back twice, and no other thread's new one.
    const auto own = streams_.begin() + static_cast<std::ptrdiff_t>(first_own_);
    if (below(16) == 0 && std::find(own, streams_.end(), held.owner) != streams_.end()) {
      heap_.deallocate(held.pointer);
    }
  }

  void hand_over() {
    if (held_.empty()) return;
    Held held = pop();
    fence_what_is_owed(held);  // the streams may be this thread's, and gone before the block is
    ++handed_over_;
    world_.exchange.put(std::move(held));
  }

  void take_over() {
    std::optional<Held> held = world_.exchange.take();
    if (!held) return;
    if (below(2) == 0) use(*held, any_stream());
    if (below(2) == 0 && held_.size() < scenario_.most_held) {
      held_.push_back(std::move(*held));
    } else {
      give_back(std::move(*held));
    }
  }

  // A block of this thread's: its start, inside, its last byte, one past the end. Or what once was
  // the start of anybody's.
  const char* random_pointer() {
    if (held_.empty() || below(2) == 0) {
      const std::uint64_t rumour =
          world_.rumours[below(world_.rumours.size())].load(std::memory_order_relaxed);
      return static_cast<const char*>(Address{rumour + below(2) * below(4096)}.pointer());
    }
    const Held& held = held_[below(held_.size())];
    const std::uint64_t end = round_up(held.bytes, kGrain).count;
    const std::array offsets = {std::uint64_t{0}, below(end), end - 1, end};
    return static_cast<const char*>(held.pointer) + offsets[below(offsets.size())];
  }

  // What is no block must be refused, and change nothing.
  void misuse() {
    char outside = 0;
    std::vector<void*> wrong = {&outside, Address{8}.pointer()};
    if (!held_.empty()) {
      wrong.push_back(static_cast<char*>(held_.back().pointer) + kGrain.count);
      wrong.push_back(static_cast<char*>(held_.back().pointer) + 1);
      // One past a block's end may be another's start; inside one of one grain is past its end.
      if (held_.back().bytes <= kGrain) wrong.erase(wrong.begin() + 2);
    }
    void* const pointer = wrong[below(wrong.size())];
    const bool refused = [&] {
      switch (below(3)) {
        case 0:
          return heap_.deallocate(pointer).error.has_value();
        case 1:
          return fence_one(pointer, any_stream()).error.has_value();
        default:
          if (held_.empty()) return true;
          return heap_.fence(std::array{held_.back().pointer, pointer}, any_stream())
              .error.has_value();
      }
    }();
    if (!refused) complain("what is no block was taken: " + describe(heap_.last()));
  }

  void change_limit() {
    static constexpr std::array kLimits = {0_B, 16_MiB, 64_MiB, 512_MiB};
    heap_.set_limit(kLimits[below(kLimits.size())]);
  }

  // One of this thread's streams, for a new one. Others may hold blocks of it still.
  void retire() {
    Stream& slot = streams_[first_own_ + below(streams_.size() - first_own_)];
    const Stream old = slot;
    fence_many(old);
    heap_.retire(old);
    expect(world_.sim.destroy_stream(old), "destroy_stream");
    slot = world_.sim.new_stream();
  }

  Held pop() {
    std::swap(held_[below(held_.size())], held_.back());
    Held held = std::move(held_.back());
    held_.pop_back();
    return held;
  }

  World& world_;
  const Scenario& scenario_;
  RecordedHeap heap_;
  std::mt19937_64 random_;
  std::vector<Stream> streams_;
  const std::size_t first_own_;  // of streams_
  std::vector<Stream> seen_;     // with a block that find() found
  std::vector<Held> held_;
  std::vector<std::string> complaints_;
  std::uint64_t handed_over_ = 0;
};

// The end: nobody at work, and all blocks given back.
void check_end(World& world, Worker& main, std::vector<std::string>& complaints) {
  const auto expect_zero = [&](const char* what, std::uint64_t is) {
    if (is != 0)
      complaints.push_back(std::string("at the end: ") + what + " " + std::to_string(is));
  };
  world.sim.finish();
  main.look();
  const Statistics idle = world.heap->statistics();
  expect_zero("live_blocks", idle.live_blocks.current);
  expect_zero("live_bytes", idle.live_bytes.current);
  expect_zero("requested_bytes", idle.requested_bytes.current);
  main.take_everything();
  world.sim.finish();
  main.trim_all();
  main.look();
  const Statistics empty = world.heap->statistics();
  expect_zero("leased_bytes", empty.leased_bytes.current);
  expect_zero("reserved_bytes", empty.reserved_bytes.current);
  expect_zero("mapped_bytes", empty.mapped_bytes.current);
  expect_zero("pages", empty.pages.current);
  expect_zero("mappings", empty.mappings.current);
  expect_zero("the device's bytes", world.sim.physical_bytes().count);
  const Bytes limit = world.scenario.heap.limit;
  if (limit > 0_B && !world.scenario.limits && world.sim.physical_peak() > limit) {
    complaints.push_back("more was held than the limit");
  }
  world.heap.reset();
  for (const std::string& leak : leaks(world.sim)) complaints.push_back("at the end: " + leak);
  for (const Race& race : world.sim.races()) complaints.push_back("race: " + race.describe());
}

}  // namespace

Outcome run(const Scenario& scenario) {
  World world(scenario);
  if (scenario.frees_when_out_of_memory) {
    world.heap->on_out_of_memory([](Bytes) {
      if (worker_of_this_thread != nullptr) worker_of_this_thread->free_something();
    });
  }
  std::vector<Stream> shared;
  for (std::uint32_t i = 0; i < scenario.shared_streams; ++i) {
    shared.push_back(world.sim.new_stream());
  }
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t i = 0; i <= scenario.threads; ++i) {
    workers.push_back(std::make_unique<Worker>(world, i, shared));
  }
  Worker& main = *workers.back();
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < scenario.threads; ++i) {
    threads.emplace_back([&worker = *workers[i]] { worker(); });
  }
  world.halfway.arrive_and_wait();
  main.look();
  world.looked.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();

  Outcome outcome;
  // What one thread put after another had looked for the last time.
  while (std::optional<Held> left = world.exchange.take()) main.adopt(std::move(*left));
  check_end(world, main, outcome.complaints);
  for (const std::unique_ptr<Worker>& worker : workers) {
    for (Call& call : worker->take_calls()) outcome.history.push_back(std::move(call));
    for (std::string& what : worker->take_complaints()) {
      outcome.complaints.push_back(std::move(what));
    }
    outcome.handed_over += worker->handed_over();
  }
  for (const Call& call : outcome.history) {
    if (call.kind != Kind::allocate) continue;
    ++(call.error ? outcome.out_of_memory : outcome.allocations);
  }
  return outcome;
}

}  // namespace weir::test
