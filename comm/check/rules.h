// What of a machine and its settings breaks captures or RDMA in silence: one table of rules. A rule
// adds what it finds, and depends on no other rule. Source: the NCCL 2.28 user guide, its source,
// and what users reported (the issue is named where there is one).
#pragma once

#include <string_view>
#include <vector>

#include "weir/comm/check.h"

namespace weir::check {

// The ids of all rules.
std::vector<std::string_view> rule_ids();

// A list of devices, as in NCCL_IB_HCA: "^=NAME[:PORT],...".
class DeviceList {
 public:
  explicit DeviceList(std::string_view text);

  struct Entry {
    std::string name;
    int port = -1;  // -1: every one
  };
  const std::vector<Entry>& entries() const { return entries_; }
  // Does `entry` name that port? By the beginning of its device's name, or by the whole name after
  // a '='.
  bool names(const Entry& entry, std::string_view device, int port) const;
  // Would NCCL use the port?
  bool takes(std::string_view device, int port) const;

 private:
  bool excludes_ = false, exact_ = false;
  std::vector<Entry> entries_;
};

}  // namespace weir::check
