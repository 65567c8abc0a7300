// SPDX-License-Identifier: Apache-2.0
// The communicator of a launch, in one call.
#include <string>
#include <utility>

#include "comm/comm_state.h"
#include "weir/allocator.h"
#include "weir/comm/launch.h"
#include "weir/comm/sim_nccl.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

// What the communicators of one world run on; they share it.
struct WorldNccl {
  std::optional<SimWorld> simulated;
  std::unique_ptr<Nccl> nccl;
};

Result<int> device_of(const Allocator& allocator, const Launch& launch) {
  const int devices = allocator.device_count();
  if (devices == 1) return 0;  // a launcher may show each process its own alone
  if (launch.local_rank < devices) return launch.local_rank;
  return Error(ErrorCode::invalid_argument,
               "world: local rank " + std::to_string(launch.local_rank) +
                   " has no GPU: there are " + std::to_string(devices) +
                   ": start one process for each GPU");
}

}  // namespace

Result<Communicator> Communicator::world(Allocator& allocator, const CommunicatorOptions& options) {
  try {
    Result<Launch> found = find_launch(process_environment());
    if (!found) return std::move(found).error();
    Launch launch = *std::move(found);
    const Result<int> number = device_of(allocator, launch);
    if (!number) return number.error();
    Device& device = allocator.device(*number);
    const auto kept = std::make_shared<WorldNccl>();
    if (auto* const simulated = dynamic_cast<SimDevice*>(&device)) {
      launch = Launch{};
      kept->simulated.emplace();
      kept->nccl = kept->simulated->rank(0, *simulated);
    } else {
      Result<std::unique_ptr<Nccl>> loaded = load_nccl(*number);
      if (!loaded) return std::move(loaded).error();
      kept->nccl = *std::move(loaded);
    }
    const Result<UniqueId> id = rendezvous(*kept->nccl, launch);
    Result<std::shared_ptr<CommState>> made =
        id ? create_comm_state(kept, {*kept->nccl, device, allocator.heap(*number)}, *id,
                               launch.ranks, launch.rank, options)
           : id.error();
    finish_rendezvous(launch);
    if (!made) return std::move(made).error();
    Communicator world(*std::move(made));
    if (Status ready = world.prepare(); !ready) return std::move(ready).error();
    return world;
  } catch (const Exception& failed) {
    return Error(failed.code(), failed.what());
  }
}

}  // namespace weir
