// SPDX-License-Identifier: Apache-2.0
// Records of one kind. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace weir {

// Records stay where they are. What the pool has taken from the system it keeps. A record that is
// not in use is linked by its member function spare_link(), a Record*&.
template <class Record>
class RecordPool {
 public:
  // As new.
  Record* take() {
    if (spare_ == nullptr) [[unlikely]]
      add_batch();
    Record* const record = spare_;
    spare_ = record->spare_link();
    *record = Record{};
    return record;
  }
  void give_back(Record* record) {
    record->spare_link() = spare_;
    spare_ = record;
  }

 private:
  static constexpr std::size_t kBatch = 32;
  void add_batch() {
    batches_.push_back(std::make_unique<Record[]>(kBatch));
    for (std::size_t i = kBatch; i-- > 0;) give_back(&batches_.back()[i]);
  }

  std::vector<std::unique_ptr<Record[]>> batches_;
  Record* spare_ = nullptr;
};

}  // namespace weir
