// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/rank_worker.h"

#include <array>
#include <chrono>
#include <random>
#include <utility>

#include "weir/graph_pool.h"

namespace weir::soak {
namespace {

constexpr int kRanks = 2;
constexpr std::uint64_t kMostCount = 200'000;

CommunicatorOptions options() {
  CommunicatorOptions options;
  options.name = "soak";
  // Simulated time passes much faster than the host's.
  options.timeout = {};
  options.host_timeout = Nanoseconds{60'000'000'000};
  options.watch_every = Nanoseconds{50'000'000};
  return options;
}

SimWorldOptions world_options() {
  SimWorldOptions options;
  options.ranks = kRanks;
  options.host_timeout = std::chrono::seconds(60);
  return options;
}

}  // namespace

// Both ranks run the same jobs with the same seed, and so ask for the same.
class RankWorker::Rank {
 public:
  Rank(World& world, SimWorld& ranks, int number)
      : world_(world),
        who_("rank " + std::to_string(number)),
        number_(number),
        nccl_(ranks.rank(number, *world.machine.sim())),
        compute_(*world.machine.gpu().new_stream()),
        side_(*world.machine.gpu().new_stream()) {}
  ~Rank() {
    comm_.reset();
    nccl_.reset();
    for (const Stream stream : {compute_, side_}) {
      expect("retire", world_.heap().retire(stream));
      expect("the end of a stream", world_.machine.gpu().destroy_stream(stream));
    }
  }

  Result<UniqueId> unique_id() { return nccl_->unique_id(); }
  // As many looks of the watchdog as it takes until nothing is left of the last burst.
  void look_for_a_while() {
    for (int i = 0; i < 128 && comm_; ++i) expect("poll", comm_->poll());
  }

  void run(const Job& job) {
    random_.seed(job.seed);
    switch (job.kind) {
      case Kind::eager:
        return eager(*comm_);
      case Kind::captured:
        return captured();
      case Kind::split:
        return split();
      case Kind::abort:
        eager(*comm_);
        comm_->abort("the soak says so");
        comm_.reset();
        return make(job.id);
      case Kind::anew:
        if (comm_) expect("close", comm_->close());
        comm_.reset();
        return make(job.id);
    }
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <class Outcome>
  bool expect(const char* call, const Outcome& outcome) {
    if (outcome.ok()) return true;
    world_.complain(who_, std::string(call) + ": " + outcome.error().message());
    return false;
  }

  void make(const UniqueId& id) {
    const CommContext context{*nccl_, world_.machine.device(), world_.heap()};
    Result<Communicator> made = Communicator::create(context, id, kRanks, number_, options());
    if (expect("create", made)) comm_ = std::move(*made);
  }

  // The other rank counts on this one: where the limit is too low, it goes.
  Block allocate(Bytes bytes) {
    for (int tries = 0;; ++tries) {
      const Result<void*> block = world_.heap().allocate(bytes, compute_);
      if (block.ok()) return {.pointer = *block, .bytes = bytes, .home = compute_};
      if (block.error().code() != ErrorCode::out_of_memory || tries == 2000) {
        expect("allocate", block);
        return {};
      }
      world_.allocator.set_limit(0_B, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void operation(Communicator& comm) {
    static constexpr std::array kKinds = {OperationKind::all_reduce, OperationKind::all_gather,
                                          OperationKind::reduce_scatter, OperationKind::broadcast,
                                          OperationKind::all_to_all};
    const OperationKind kind = kKinds[below(kKinds.size())];
    const std::uint64_t count = 2 * (1 + below(kMostCount));
    const bool overlaps = chance(70), waits = chance(50), on_side = chance(30);
    const Bytes bytes{4 * count * kRanks};
    Block send = allocate(bytes), receive = allocate(bytes);
    if (send.pointer == nullptr || receive.pointer == nullptr) return;
    expect("write", world_.machine.write(compute_, send, below(1000), 0_ns));
    Where where = compute_;
    where.overlap = overlaps;
    const Result<Work> work = comm.run({.kind = kind,
                                        .send = send.pointer,
                                        .receive = receive.pointer,
                                        .count = count,
                                        .type = DataType::float32},
                                       where);
    if (expect("a collective", work) && waits) {
      const Stream reader = on_side ? side_ : compute_;
      expect("wait", work->wait(reader));
      expect("read", world_.machine.check(reader, receive, 0_ns, who_, world_.complaints));
      if (on_side) expect("fence", world_.heap().fence(receive.pointer, side_));
    }
    for (const Block& block : {send, receive}) {
      expect("deallocate", world_.heap().deallocate(block.pointer));
    }
  }

  void eager(Communicator& comm) {
    for (std::uint64_t i = 4 + below(20); i > 0; --i) {
      operation(comm);
      world_.machine.pass_time(50_us);
    }
  }

  void captured() {
    if (!expect("prepare", comm_->prepare())) return;
    // A rank that lacked what it lent would leave the others waiting.
    GraphPool pool(world_.heap(), {.scratch = GraphScratch::keep});
    Result<CaptureScope> capture = CaptureScope::begin(pool, compute_);
    if (!expect("the begin of a capture", capture)) return;
    expect("fork", world_.machine.gpu().order(compute_, side_));
    for (std::uint64_t i = 1 + below(6); i > 0; --i) operation(*comm_);
    expect("join", world_.machine.gpu().order(side_, compute_));
    Result<Graph> graph = comm_->end_capture(*capture);
    if (!expect("the end of a capture", graph)) return;
    for (std::uint64_t i = 1 + below(4); i > 0; --i) {
      expect("a launch", comm_->launch(*graph, compute_));
    }
  }

  void split() {
    Result<std::optional<Communicator>> part = comm_->split(0, number_, options());
    if (!expect("split", part) || !*part) return;
    eager(**part);
    expect("close", (*part)->close());
  }

  World& world_;
  const std::string who_;
  const int number_;
  std::unique_ptr<Nccl> nccl_;
  const Stream compute_, side_;
  std::mt19937_64 random_;
  std::optional<Communicator> comm_;
};

RankWorker::RankWorker(World& world, std::string name, std::uint64_t seed)
    : Worker(world, std::move(name), seed),
      peer_machine_(test::open_sim_gpu({.memory = 4_GiB})),
      peer_world_(peer_machine_, {.log = LogLevel::off}, world.complaints),
      ranks_(world_options()),
      mine_(std::make_unique<Rank>(world, ranks_, 0)),
      peer_(std::make_unique<Rank>(peer_world_, ranks_, 1)),
      thread_([this] { serve_peer(); }) {
  if (const Result<UniqueId> id = mine_->unique_id(); expect("unique_id", id)) {
    run_on_both({.kind = Kind::anew, .seed = 0, .id = *id});
  }
}

RankWorker::~RankWorker() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  mine_.reset();  // the peer's goes in its thread, at the same time
  thread_.join();
  for (const std::string& differs : ranks_.mismatches()) complain("ranks differ: " + differs);
  if (peer_machine_.sim()->race_count() != 0) {
    complain("the peer: " + peer_machine_.sim()->races().front().describe());
  }
  for (const std::string& broken : peer_world_.heap().validate()) complain("the peer: " + broken);
  if (ranks_.counts().communicators + ranks_.counts().streams + ranks_.counts().registrations !=
      0) {
    complain("communicators, their streams or registrations are left");
  }
}

void RankWorker::serve_peer() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return job_ || ends_; });
    if (!job_) break;
    const Job job = *job_;
    lock.unlock();
    peer_->run(job);
    lock.lock();
    job_.reset();
    changed_.notify_all();
  }
  lock.unlock();
  peer_.reset();
}

void RankWorker::run_on_both(const Job& job) {
  {
    const std::scoped_lock lock(mutex_);
    job_ = job;
    changed_.notify_all();
  }
  mine_->run(job);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !job_; });
}

void RankWorker::step() {
  const std::uint64_t choice = below(100);
  Job job{.kind = Kind::eager, .seed = 1 + below(1'000'000'000), .id = {}};
  if (choice >= 70) job.kind = Kind::captured;
  // A communicator has streams of its own.
  if (choice >= 90 && world_.may_change_stream()) {
    job.kind = choice >= 98 ? Kind::abort : choice >= 96 ? Kind::anew : Kind::split;
  }
  if (job.kind == Kind::anew || job.kind == Kind::abort) {
    const Result<UniqueId> id = mine_->unique_id();
    if (!expect("unique_id", id)) return;
    job.id = *id;
  }
  run_on_both(job);
}

void RankWorker::drop_all() {
  world_.machine.sim()->finish();
  peer_machine_.sim()->finish();
  for (Rank* const rank : {mine_.get(), peer_.get()}) {
    if (rank != nullptr) rank->look_for_a_while();
  }
  expect("trim of the peer", peer_world_.heap().trim());
}

}  // namespace weir::soak
