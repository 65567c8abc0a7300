// SPDX-License-Identifier: Apache-2.0
#include "tests/property/runner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "observe/statistics_fold.h"
#include "tests/property/oracle.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

using Kind = Operation::Kind;

// The heap's events to the fold, and to the caller's sink.
class Listeners final : public EventSink {
 public:
  explicit Listeners(EventSink* also) : also_(also) {}
  void on_event(const Event& event) override {
    fold_.on_event(event);
    if (also_ != nullptr) also_->on_event(event);
  }
  const StatisticsFold& fold() const { return fold_; }

 private:
  StatisticsFold fold_;
  EventSink* also_;
};

// A live block, and what the program must still order or fence.
struct LiveBlock {
  void* pointer = nullptr;
  Bytes bytes;
  Stream owner;
  struct Use {
    Stream stream;
    bool write = false;
    EventHandle after;  // recorded right after it
  };
  std::vector<Use> uses;  // those that a next use may conflict with; first, the allocation
  std::set<std::uint64_t> unfenced;  // streams whose work on it has no fence yet
  std::set<std::uint64_t> recorded;  // streams named to record_stream()
  std::vector<SimContent> contents;  // when it fell asleep
  bool has_slept = false;
};

SimOptions sim_options(const Program& program) {
  SimOptions options;
  options.memory = program.memory;
  options.track_contents =
      std::any_of(program.operations.begin(), program.operations.end(),
                  [](const Operation& operation) { return operation.kind == Kind::sleep; });
  return options;
}

class Run {
 public:
  Run(const Program& program, const RunOptions& options)
      : program_(program),
        options_(options),
        sim_(sim_options(program)),
        listeners_(options.sink),
        limit_(program.limit) {
    for (std::uint32_t i = 0; i < program.streams; ++i) streams_.push_back(sim_.new_stream());
    if (options.fault) sim_.fail(options.fault->kind, options.fault->nth, options.fault->code);
    if (options.omission) forgetful_.emplace(sim_, *options.omission);
    heap_ = std::make_unique<DeviceHeap>(forgetful_ ? *forgetful_ : static_cast<Device&>(sim_),
                                         HeapOptions{.limit = program.limit,
                                                     .reuse = program.reuse,
                                                     .most_mappings = program.most_mappings,
                                                     .memory = program.kind},
                                         &listeners_);
  }

  RunResult finish() && {
    for (step_ = 0; step_ < program_.operations.size() && !failed(); ++step_) {
      execute(program_.operations[step_]);
      const std::uint32_t every = options_.check_every;
      if (every != 0 && step_ % every == every - 1) check();
    }
    while (!blocks_.empty() && !failed()) deallocate(blocks_.begin()->first);
    check();
    check_fold();
    tear_down();
    return std::move(result_);
  }

 private:
  bool failed() const { return result_.failure.has_value(); }

  void complain(const std::string& what) {
    if (!failed()) result_.failure = {std::min(step_, program_.operations.size()), what};
  }

  void check() {
    if (failed()) return;
    std::string all;
    for (const std::string& complaint : oracle_.check(*heap_, sim_)) all += complaint + "\n";
    if (!all.empty()) complain(all);
  }

  void check_fold() {
    // A heap to which nothing ever happened has no events.
    const auto without_unused = [](Statistics statistics) {
      std::erase_if(statistics.heaps, [](const HeapStatistics& of) {
        return of.live_blocks.total == 0 && of.stream_waits == 0;
      });
      return statistics;
    };
    const Statistics folded = without_unused(listeners_.fold().statistics());
    if (!failed() && !(folded == without_unused(heap_->statistics()))) {
      complain("statistics() differs from the fold of the heap's own events");
    }
  }

  // An error that the heap may report: only the scripted fault, by the name of the call that
  // failed. Afterwards the caller sees to it that nothing has changed, and tries again.
  bool tolerated(const Error& error, const char* call) {
    ++result_.errors;
    const bool scripted = options_.fault && (error.code() == options_.fault->code) &&
                          error.message().find(name_of(options_.fault->kind)) != std::string::npos;
    if (scripted && result_.errors == 1) return true;
    complain(std::string(call) + ": " + error.message());
    return false;
  }

  // A call of the heap that no correct program sees refused: only the scripted fault may, once.
  template <class Call>
  bool succeeds(const char* name, Call call) {
    Status status = call();
    if (status.ok()) return true;
    if (!tolerated(status.error(), name)) return false;
    check();
    status = call();
    if (!status.ok()) complain(std::string(name) + ", tried again: " + status.error().message());
    return status.ok();
  }

  // The program's own calls of the device: where the scripted fault hits one of those, it says
  // nothing about the heap.
  template <class Call>
  auto own(Call call) {
    auto result = call();
    if (!result.ok()) result = call();
    if (!result.ok()) complain("the program's own call: " + result.error().message());
    return result;
  }

  void execute(const Operation& operation) {
    switch (operation.kind) {
      case Kind::allocate:
        return allocate(operation);
      case Kind::launch:
        return launch(operation);
      case Kind::fence:
        return fence(operation);
      case Kind::record_stream:
        return record_stream(operation);
      case Kind::deallocate:
        return deallocate(operation.id);
      case Kind::misuse:
        return misuse(operation);
      case Kind::trim:
        return trim(operation.bytes);
      case Kind::set_limit:
        return set_limit(operation.bytes);
      case Kind::retire:
        return retire(operation.stream);
      case Kind::advance:
        return sim_.advance(operation.duration);
      case Kind::sleep:
        return sleep();
      case Kind::wake:
        return wake();
    }
  }

  void sleep() {
    if (!is_asleep_) {
      for (auto& [id, block] : blocks_) {
        block.contents = sim_.contents(Address::of(block.pointer), block.bytes);
      }
    }
    oracle_.set_memory(Oracle::Memory::partly_asleep);
    // Copies of an immutable tag serve the next sleep too, unless the program says otherwise.
    SleepOptions how;
    how.contents = step_ % 2 == 0 ? SleepContents::immutable : SleepContents::backup;
    if (std::exchange(wrote_, false)) (void)heap_->tags().declare_changed(kDefaultTag);
    if (step_ % 3 == 0) how.tags = {kDefaultTag, kDefaultTag};  // once is as good as twice
    const Bytes held = sim_.physical_bytes();
    Bytes given_back;
    const bool asleep = succeeds("sleep", [&]() -> Status {
      const SimLive before = sim_.live();
      const Result<SleepReport> slept = heap_->tags().sleep(how);
      const bool took_nothing =
          sim_.live().handles == before.handles && sim_.live().mappings == before.mappings;
      if (!slept && !is_asleep_ && took_nothing &&
          heap_->tags().list().front().state != TagState::awake) {
        complain("a sleep that failed, and took nothing, left the memory asleep");
      }
      if (slept) given_back = slept->given_back;
      return slept ? Status{} : Status(slept.error());
    });
    if (!asleep) return;
    if (result_.errors == 0 && held - sim_.physical_bytes() != given_back) {
      complain("sleep gave back other than it said");
    }
    for (auto& [id, block] : blocks_) block.has_slept = true;
    is_asleep_ = true;
    ++result_.sleeps;
    oracle_.set_memory(Oracle::Memory::asleep);
  }

  void wake() {
    if (!is_asleep_) return;
    oracle_.set_memory(Oracle::Memory::partly_asleep);
    const bool awake = succeeds("wake", [&]() -> Status {
      Result<SleepReport> woken = heap_->tags().wake();
      // The limit was lowered meanwhile, or the fault is that.
      if (!woken && woken.error().code() == ErrorCode::out_of_memory && limit_ > 0_B) {
        limit_ = 0_B;
        heap_->set_limit(limit_);
        check();
        woken = heap_->tags().wake();
      }
      return woken ? Status{} : Status(woken.error());
    });
    if (!awake) return;
    if (limit_ > 0_B && sim_.physical_bytes() > limit_) complain("woke beyond its limit");
    is_asleep_ = false;
    oracle_.set_memory(Oracle::Memory::awake);
    for (const auto& [id, block] : blocks_) {
      if (sim_.contents(Address::of(block.pointer), block.bytes) != block.contents) {
        complain("a block woke with other bytes than it had");
      }
    }
  }

  void allocate_asleep(const Operation& operation) {
    const Result<void*> block = heap_->allocate(operation.bytes, streams_[operation.stream]);
    if (operation.bytes == 0_B || operation.bytes > program_.memory) {
      if (!block) oracle_.ran_out_of_memory();
      return;
    }
    if (block || block.error().code() != ErrorCode::asleep) {
      complain("a request was not told that the memory sleeps");
    }
  }

  void allocate(const Operation& operation) {
    if (is_asleep_) return allocate_asleep(operation);
    const Stream stream = streams_[operation.stream];
    const std::uint64_t held = sim_.physical_bytes().count, host_waits = sim_.host_waits();
    ++result_.allocations;
    Result<void*> block = heap_->allocate(operation.bytes, stream);
    if (!block.ok() && block.error().code() == ErrorCode::device) {
      if (!tolerated(block.error(), "allocate")) return;
      check();
      block = heap_->allocate(operation.bytes, stream);
    }
    const std::uint64_t holds = sim_.physical_bytes().count;
    if (limit_ > 0_B && holds > held && holds > limit_.count) complain("grew beyond its limit");
    if (sim_.host_waits() != host_waits && lets_the_gpu_wait()) complain("the host waited");
    if (!block.ok()) return refused(operation.bytes, block.error());
    if (operation.bytes == 0_B) {
      if (*block != nullptr) complain("zero bytes got a block");
      return;
    }
    if (*block == nullptr) return complain("a request got null");
    const std::optional<BlockInfo> info = heap_->find(*block);
    if (!info) return complain("a block that was just allocated can't be found");
    oracle_.allocated(*block, operation.bytes, stream, info->heap);
    LiveBlock live;
    live.pointer = *block;
    live.bytes = operation.bytes;
    live.owner = stream;
    add_use(live, stream, true);
    blocks_.emplace(operation.id, std::move(live));
  }

  // Then the host need not wait for work: it gains no memory that the GPU's waits do not.
  bool lets_the_gpu_wait() const {
    return program_.kind == MemoryKind::pages && program_.reuse != ReusePolicy::no_wait &&
           program_.most_mappings == Program::kPlentyOfMappings;
  }

  void refused(Bytes bytes, const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) return complain(error.message());
    ++result_.out_of_memory;
    oracle_.ran_out_of_memory();
    if (error.message().empty()) complain("out of memory, without a word");
    // The fault, or a lack of mappings, may be why.
    if (options_.fault || program_.most_mappings < Program::kPlentyOfMappings) return;
    const Bytes available = surely_available(*heap_, limit_, program_.memory);
    if (bytes <= available) {
      std::ostringstream text;
      text << "out of memory for " << bytes.count << " bytes, while " << available.count
           << " were to be had: " << error.message();
      complain(text.str());
    }
  }

  void add_use(LiveBlock& block, Stream stream, bool write) {
    const Result<EventHandle> event = own([&] { return sim_.create_event(); });
    if (!event.ok()) return;
    (void)own([&] { return sim_.record(*event, stream); });
    block.uses.push_back({stream, write, *event});
  }

  void forget_uses(LiveBlock& block) {
    for (const LiveBlock::Use& use : block.uses) {
      (void)own([&] { return sim_.destroy_event(use.after); });
    }
    block.uses.clear();
  }

  void launch(const Operation& operation) {
    const auto found = blocks_.find(operation.id);
    if (found == blocks_.end() || is_asleep_) return;
    LiveBlock& block = found->second;
    const Stream stream = streams_[operation.stream];
    for (const LiveBlock::Use& use : block.uses) {
      if (use.stream == stream || !(use.write || operation.write)) continue;
      (void)own([&] { return sim_.wait(stream, use.after); });
    }
    const Access access =
        operation.write ? Writes(block.pointer, block.bytes) : Reads(block.pointer, block.bytes);
    const Status status = sim_.launch(stream, access, operation.duration);
    if (!status.ok()) return complain("launch: " + status.error().message());
    over_by_ = std::max(over_by_, sim_.now()) + operation.duration;
    // (That a block is new, the heap knows.)
    wrote_ = wrote_ || (operation.write && block.has_slept);
    if (!(stream == block.owner)) block.unfenced.insert(stream.id);
    // A write is ordered after all uses before it, and so stands for them.
    if (operation.write) forget_uses(block);
    add_use(block, stream, operation.write);
  }

  void fence(const Operation& operation) {
    const Stream user = streams_[operation.stream];
    std::vector<void*> named;
    std::vector<LiveBlock*> fenced;
    for (auto& [id, block] : blocks_) {
      if (operation.all ? block.unfenced.count(user.id) > 0 : id == operation.id) {
        named.push_back(block.pointer);
        fenced.push_back(&block);
      }
    }
    if (named.empty()) return;
    if (!succeeds("fence", [&] { return heap_->fence(named, user); })) return;
    for (LiveBlock* const block : fenced) note_fenced(*block, user);
  }

  void record_stream(const Operation& operation) {
    const auto found = blocks_.find(operation.id);
    if (found == blocks_.end()) return;
    const Stream user = streams_[operation.stream];
    if (!succeeds("record_stream",
                  [&] { return heap_->record_stream(found->second.pointer, user); })) {
      return;
    }
    found->second.recorded.insert(user.id);
    oracle_.used(found->second.pointer, user);
  }

  void fence_what_needs_it(LiveBlock& block) {
    for (const Stream& user : streams_) {
      if (block.unfenced.count(user.id) == 0 || block.recorded.count(user.id) > 0) continue;
      if (!succeeds("fence", [&] { return heap_->fence(block.pointer, user); })) return;
      note_fenced(block, user);
    }
  }

  void note_fenced(LiveBlock& block, Stream user) {
    block.unfenced.erase(user.id);
    oracle_.used(block.pointer, user);
  }

  void deallocate(std::uint32_t id) {
    const auto found = blocks_.find(id);
    if (found == blocks_.end()) return;
    LiveBlock& block = found->second;
    fence_what_needs_it(block);
    if (failed()) return;
    const bool is_idle = is_device_idle();
    if (!succeeds("deallocate", [&] { return heap_->deallocate(block.pointer); })) return;
    oracle_.deallocated(block.pointer);
    last_freed_ = block.pointer;
    forget_uses(block);
    blocks_.erase(found);
    check_limit(is_idle);
  }

  void set_limit(Bytes limit) {
    if (options_.idle_at_limits) sim_.finish();
    const bool is_idle = is_device_idle();
    limit_ = limit;
    heap_->set_limit(limit_);
    check_limit(is_idle);
  }

  // Is all work over, even if each kernel waited for those before it?
  bool is_device_idle() const { return sim_.now() >= over_by_; }

  // If work was over before the call, nothing that is held beyond the limit may go only now.
  void check_limit(bool was_idle) {
    if (!was_idle || limit_ == 0_B || is_asleep_ || options_.fault || options_.omission) return;
    const Bytes held = sim_.physical_bytes();
    if (held <= limit_) return;
    const Result<Bytes> more = heap_->trim(limit_);
    if (!more || sim_.physical_bytes() < held) complain("idle memory stayed beyond the limit");
  }

  // An address inside a block, and a block given back already.
  void misuse(const Operation& operation) {
    const auto found = blocks_.find(operation.id);
    if (found != blocks_.end() && found->second.bytes > 1_B) {
      expect_unknown(static_cast<char*>(found->second.pointer) + 1);
    }
    const std::uint64_t freed = Address::of(last_freed_).value;
    if (last_freed_ != nullptr && oracle_.blocks().count(freed) == 0) expect_unknown(last_freed_);
  }

  void expect_unknown(void* pointer) {
    const Status freed = heap_->deallocate(pointer);
    if (freed.ok() || freed.error().code() != ErrorCode::unknown_pointer) {
      complain("deallocate took what is no block");
    }
    const Status fenced = heap_->fence(pointer, streams_[0]);
    if (fenced.ok() || fenced.error().code() != ErrorCode::unknown_pointer) {
      complain("fence took what is no block");
    }
    if (blocks_.empty()) return;
    void* const both[] = {blocks_.begin()->second.pointer, pointer};
    const std::uint64_t fences = heap_->statistics().fences;
    if (heap_->fence(both, streams_[0]).ok() || heap_->statistics().fences != fences) {
      complain("a fence that was refused changed a block");
    }
  }

  void trim(Bytes keep) {
    const Bytes held = sim_.physical_bytes();
    const bool refused_before = has_refused();
    Bytes given_back;
    const bool done = succeeds("trim", [&]() -> Status {
      const Result<Bytes> result = heap_->trim(keep);
      if (!result.ok()) return result.error();
      given_back = *result;
      return {};
    });
    if (!done) return;
    // A trim that failed half-way gave back some already, which only its events tell.
    if (result_.errors == 0 && held - sim_.physical_bytes() != given_back) {
      complain("trim gave back other than it said");
    }
    if (result_.errors == 0 && has_refused() != refused_before && sim_.physical_bytes() > keep) {
      complain("trim did not say that the device kept memory");
    }
  }

  // Has the scripted fault come, and was it a refusal to take memory back?
  bool has_refused() const {
    if (!options_.fault) return false;
    const auto [kind, nth, code] = *options_.fault;
    return (kind == DeviceCall::unmap || kind == DeviceCall::release) && sim_.calls(kind) >= nth;
  }

  void retire(std::uint32_t slot) {
    const Stream old = streams_[slot];
    for (auto& entry : blocks_) {
      LiveBlock& block = entry.second;
      if (block.unfenced.count(old.id) == 0 || block.recorded.count(old.id) > 0) continue;
      if (!succeeds("fence", [&] { return heap_->fence(block.pointer, old); })) return;
      note_fenced(block, old);
    }
    if (!succeeds("retire", [&] { return heap_->retire(old); })) return;
    (void)own([&] { return sim_.destroy_stream(old); });
    streams_[slot] = sim_.new_stream();
  }

  // The contract of ~DeviceHeap: what uses the memory is synchronised before.
  void tear_down() {
    for (int call = 0; call < kDeviceCalls; ++call) {
      result_.calls[static_cast<std::size_t>(call)] = sim_.calls(static_cast<DeviceCall>(call));
    }
    result_.host_waits = sim_.host_waits();
    result_.stream_waits = heap_->statistics().stream_waits;
    result_.omitted = forgetful_ && forgetful_->has_omitted();
    for (auto& [id, block] : blocks_) forget_uses(block);
    sim_.finish();
    heap_.reset();
    if (failed()) return;
    std::string all;
    for (const std::string& leak : leaks(sim_)) all += leak + "\n";
    if (!all.empty()) complain("after the end: " + all);
  }

  const Program& program_;
  const RunOptions& options_;
  SimDevice sim_;
  std::optional<ForgetfulDevice> forgetful_;  // of the heap's calls
  Listeners listeners_;
  std::unique_ptr<DeviceHeap> heap_;
  Oracle oracle_;
  std::vector<Stream> streams_;
  std::map<std::uint32_t, LiveBlock> blocks_;
  Bytes limit_;
  Nanoseconds over_by_;  // when all work is over, at the latest
  bool is_asleep_ = false;
  bool wrote_ = false;  // since memory slept last
  void* last_freed_ = nullptr;
  std::size_t step_ = 0;
  RunResult result_;
};

}  // namespace

RunResult run(const Program& program, const RunOptions& options) {
  return Run(program, options).finish();
}

}  // namespace weir::test
