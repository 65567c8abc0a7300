// Memory that NCCL can't register.
#include "tests/comm/ranks.h"
#include "weir/comm/registered_pool.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;

TEST(Registrable, IsNothingOfTheDeviceHeaps) {
  SimDevice device;
  DeviceHeap heap(device);
  const Stream stream = device.new_stream();
  void* const small = *heap.allocate(2_MiB, stream);
  expect_error(check_registrable(heap, small, 4_KiB), ErrorCode::invalid_argument,
               "the device heap's, whose pages go elsewhere");
  expect_error(check_registrable(heap, small, 4_KiB), ErrorCode::invalid_argument,
               "take it from a RegisteredPool");
  // A block of many pages.
  void* first = *heap.allocate(30_MiB, stream);
  void* second = *heap.allocate(30_MiB, stream);
  expect_ok(heap.deallocate(first));
  expect_ok(heap.deallocate(second));
  void* const large = *heap.allocate(70_MiB, stream);
  ASSERT_GT(heap.parts(large).size(), 1u);
  expect_error(check_registrable(heap, large, 70_MiB), ErrorCode::invalid_argument,
               "straddles " + std::to_string(heap.parts(large).size()) + " physical handles");
  expect_ok(heap.deallocate(small));
  expect_ok(heap.deallocate(large));
  expect_error(check_registrable(heap, large, 4_KiB), ErrorCode::invalid_argument,
               "the device heap's");
}

TEST(Registrable, IsOtherMemoryInWholePages) {
  SimDevice device;
  DeviceHeap heap(device);
  const Address outside{std::uint64_t{1} << 20};
  expect_ok(check_registrable(heap, outside.pointer(), 8_KiB));
  expect_error(check_registrable(heap, (outside + 512_B).pointer(), 4_KiB),
               ErrorCode::invalid_argument, "multiples of 4.00 KiB");
  expect_error(check_registrable(heap, outside.pointer(), 100_B), ErrorCode::invalid_argument,
               "multiples of 4.00 KiB");
  expect_error(check_registrable(heap, nullptr, 4_KiB), ErrorCode::invalid_argument,
               "nothing there");
  expect_error(check_registrable(heap, outside.pointer(), Bytes{~std::uint64_t{0}}),
               ErrorCode::invalid_argument, "beyond all addresses");
}

}  // namespace
}  // namespace weir
