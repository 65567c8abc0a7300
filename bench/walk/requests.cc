// SPDX-License-Identifier: Apache-2.0
// The requests that docs/walk.md follows, for a tool that lists the calls that they make.
//
// usage: weir_walk_requests REQUEST TIMES
//
// TIMES is 0 or 1: all up to the request is done in either case, and what runs with 1 and not with
// 0 is the request. bench/walk/check takes that difference. Exit: 0; 1 if a call failed; 2 for
// wrong arguments.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "suite/null_device.h"
#include "weir/device_heap.h"

namespace weir {
namespace {

[[noreturn]] void stop(const std::string& why, int status) {
  std::fprintf(stderr, "weir_walk_requests: %s\n", why.c_str());
  std::exit(status);
}

class Requests {
 public:
  void* allocate(Bytes bytes, Stream stream) {
    Result<void*> block = heap_.allocate(bytes, stream);
    if (!block.ok()) stop(block.error().message(), 1);
    return *block;
  }
  void deallocate(void* block) {
    if (const Status done = heap_.deallocate(block); !done) stop(done.error().message(), 1);
  }
  // The block goes back to the page heap, not to the cached blocks.
  void give_back(void* block) {
    deallocate(block);
    if (const Result<Bytes> none = heap_.trim(1024_TiB); !none.ok()) stop("trim failed", 1);
  }

  const Stream a = stream(0), b = stream(1);

 private:
  Stream stream(int number) {
    return device_.stream(bench::NullDevice::stream_handle(number)).value();
  }
  bench::NullDevice device_;
  DeviceHeap heap_{device_};
};

void run(std::string_view request, bool is_made) {
  Requests requests;
  // Both streams have heaps, and the home row has a region and no free page.
  (void)requests.allocate(2_MiB, requests.a);
  (void)requests.allocate(2_MiB, requests.b);
  if (request == "first") {
    if (is_made) (void)requests.allocate(100_MiB, requests.a);
  } else if (request == "repeated") {
    requests.give_back(requests.allocate(100_MiB, requests.a));
    if (is_made) (void)requests.allocate(100_MiB, requests.a);
  } else if (request == "of_another_stream") {
    requests.give_back(requests.allocate(100_MiB, requests.a));
    if (is_made) (void)requests.allocate(100_MiB, requests.b);
  } else if (request == "free") {
    void* const block = requests.allocate(100_MiB, requests.a);
    if (is_made) requests.give_back(block);
  } else if (request == "small") {
    (void)requests.allocate(1000_B, requests.a);
    if (is_made) (void)requests.allocate(1000_B, requests.a);
  } else {
    stop("no request is " + std::string(request), 2);
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const std::string_view times = argc == 3 ? argv[2] : "";
  if (times != "0" && times != "1") {
    std::fprintf(stderr, "usage: weir_walk_requests REQUEST 0|1\n");
    return 2;
  }
  weir::run(argv[1], times == "1");
  return 0;
}
