// SPDX-License-Identifier: Apache-2.0
#include "torch/descriptor_server.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "observe/own_thread.h"

namespace weir::pytorch {
namespace {

constexpr std::size_t kKeyDigits = 32;
// In one message; the kernel takes 253 at most.
constexpr std::size_t kBatch = 128;
constexpr int kServerPatience = 1, kClientPatience = 10;       // seconds
constexpr std::chrono::milliseconds kUntilThereMayBeRoom{20};  // for one more descriptor

std::optional<std::string> random_digits() {
  std::array<unsigned char, kKeyDigits / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

Error socket_error(const char* call) {
  return {ErrorCode::unavailable, fmt::format("{}: {}", call, std::strerror(errno))};
}

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;
};
// Its first byte is zero: no file has that name.
SocketAddress abstract_address(const std::string& name) {
  SocketAddress at;
  at.address.sun_family = AF_UNIX;
  const std::string whole = "weir-" + name;
  const std::size_t length = std::min(whole.size(), sizeof at.address.sun_path - 1);
  std::memcpy(at.address.sun_path + 1, whole.data(), length);
  at.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return at;
}

void set_patience(int socket, int seconds) {
  const timeval limit{.tv_sec = seconds, .tv_usec = 0};
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bool send_all(int socket, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// With one byte, as some data must go along.
struct Message {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kBatch * sizeof(int))> control{};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr header{};

  explicit Message(std::size_t descriptors) {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

bool send_batch(int socket, const std::vector<Descriptor>& all, std::size_t begin,
                std::size_t count) {
  Message message(count);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) {
    const int number = all[begin + i].number();
    std::memcpy(CMSG_DATA(rights) + i * sizeof number, &number, sizeof number);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1;
}

bool receive_batch(int socket, std::vector<Descriptor>& all) {
  Message message(kBatch);
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got != 1) return false;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message.header); each != nullptr;
       each = CMSG_NXTHDR(&message.header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(each) + i * sizeof number, sizeof number);
      all.emplace_back(number);
    }
  }
  return (message.header.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}
Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

DescriptorServer::~DescriptorServer() {
  if (!thread_.joinable()) return;
  (void)::shutdown(socket_.number(), SHUT_RDWR);  // ends accept()
  thread_.join();
}

Status DescriptorServer::start() {
  if (!name_.empty()) return {};
  const std::optional<std::string> name = random_digits();
  if (!name) return socket_error("getrandom");
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.number() < 0) return socket_error("socket");
  const SocketAddress at = abstract_address(*name);
  if (::bind(socket.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) {
    return socket_error("bind");
  }
  if (::listen(socket.number(), SOMAXCONN) != 0) return socket_error("listen");
  socket_ = std::move(socket);
  thread_ = start_quiet_thread([this] { serve(); });
  name_ = *name;
  return {};
}

Result<DescriptorServer::Offer> DescriptorServer::offer(std::vector<Descriptor> descriptors) {
  const std::optional<std::string> key = random_digits();
  if (!key) return socket_error("getrandom");
  const std::lock_guard lock(mutex_);
  (void)start();  // without it the name stays empty
  offers_[*key] = std::make_shared<const std::vector<Descriptor>>(std::move(descriptors));
  return Offer{name_, *key};
}

void DescriptorServer::withdraw(const std::string& key) {
  const std::lock_guard lock(mutex_);
  offers_.erase(key);
}

void DescriptorServer::serve() {
  while (true) {
    const Descriptor client(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.number() >= 0) {
      answer(client.number());
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      std::this_thread::sleep_for(kUntilThereMayBeRoom);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// The key comes; their number goes, zero if there is no such offer, and then they themselves.
void DescriptorServer::answer(int client) {
  set_patience(client, kServerPatience);
  std::string key(kKeyDigits, '\0');
  if (!receive_all(client, key.data(), key.size())) return;
  Descriptors offered;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = offers_.find(key); known != offers_.end()) offered = known->second;
  }
  const std::uint64_t count = offered == nullptr ? 0 : offered->size();
  if (!send_all(client, &count, sizeof count)) return;
  for (std::size_t at = 0; at < count; at += kBatch) {
    if (!send_batch(client, *offered, at, std::min<std::size_t>(kBatch, count - at))) return;
  }
}

Result<std::vector<Descriptor>> take_descriptors(const DescriptorServer::Offer& from,
                                                 std::size_t count) {
  if (from.name.empty()) {
    return Error(ErrorCode::unavailable, "the process that shares can't have a socket");
  }
  if (from.key.size() != kKeyDigits) {
    return Error(ErrorCode::unavailable, "the key of the shared memory is damaged");
  }
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.number() < 0) return socket_error("socket");
  set_patience(socket.number(), kClientPatience);
  const SocketAddress at = abstract_address(from.name);
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) {
    return socket_error("connect");
  }
  std::uint64_t offered = 0;
  if (!send_all(socket.number(), from.key.data(), from.key.size()) ||
      !receive_all(socket.number(), &offered, sizeof offered)) {
    return socket_error("no answer");
  }
  if (offered != count) {
    return Error(ErrorCode::unknown_pointer, "the process that shares has freed the memory");
  }
  std::vector<Descriptor> taken;
  while (taken.size() < count) {
    const std::size_t before = taken.size();
    if (!receive_batch(socket.number(), taken) || taken.size() == before || taken.size() > count) {
      return Error(ErrorCode::unavailable,
                   fmt::format("{} of {} file descriptors came: the process that shares has ended, "
                               "or this one may open no more (ulimit -n)",
                               before, count));
    }
  }
  return taken;
}

}  // namespace weir::pytorch
