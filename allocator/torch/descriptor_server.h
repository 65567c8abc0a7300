// SPDX-License-Identifier: Apache-2.0
// File descriptors for other processes: a Unix socket gives them to whoever knows a key.
//
// This reaches other containers, as long as both share a network namespace: the socket's name is
// abstract.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weir/result.h"

namespace weir::pytorch {

// A file descriptor, closed again.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int number() const { return number_; }

 private:
  int number_ = -1;
};

// The server's thread starts with the first offer, and takes one client after the other: one that
// says nothing for a second is sent away. It is not there in a child of fork().
// Threads: self-synchronised.
class DescriptorServer {
 public:
  DescriptorServer() = default;
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  // Where others find the descriptors. Both are random, as hexadecimal digits; the name can be seen
  // by all of the system, the key by nobody who is not told it.
  struct Offer {
    std::string name;  // empty: this process can't have a socket
    std::string key;
  };
  // They stay open, the server's, until the offer is withdrawn. Errors: unavailable (no
  // randomness).
  Result<Offer> offer(std::vector<Descriptor> descriptors);
  void withdraw(const std::string& key);

 private:
  using Descriptors = std::shared_ptr<const std::vector<Descriptor>>;

  Status start();  // with mutex_ held
  void serve();
  void answer(int client);

  std::mutex mutex_;
  std::string name_;                           // guarded by mutex_; empty: not started
  std::map<std::string, Descriptors> offers_;  // guarded by mutex_; by key
  Descriptor socket_;
  std::thread thread_;
};

// `count` descriptors, from the server of that name in whatever process. Waits for 10 s at most.
// Errors: unavailable (nobody answers there); unknown_pointer (the offer was withdrawn).
Result<std::vector<Descriptor>> take_descriptors(const DescriptorServer::Offer& from,
                                                 std::size_t count);

}  // namespace weir::pytorch
