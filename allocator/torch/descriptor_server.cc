// SPDX-License-Identifier: Apache-2.0
#include "torch/descriptor_server.h"

#include <fmt/ranges.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

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
constexpr int kServerPatience = 1, kClientPatience = 10;       // seconds
constexpr std::chrono::milliseconds kUntilThereMayBeRoom{20};  // for one more descriptor

std::optional<std::string> random_digits() {
  std::array<unsigned char, kKeyDigits / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

Error socket_error(const char* call) {
  return {ErrorCode::unavailable, fmt::format("{}: {}", call, std::strerror(errno))};
}

// Messages have bounds, so that each comes whole or not at all.
Descriptor new_socket() { return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// ::bind() or ::connect() to an abstract name: its first byte is zero, and no file has it.
template <class Call>
bool at_name(Call call, const Descriptor& socket, const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string whole = "weir-" + name;
  const std::size_t length = whole.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return call(socket.number(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

void set_patience(int socket, int seconds) {
  const timeval limit{.tv_sec = seconds, .tv_usec = 0};
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// The call again, until no signal interrupts it: did it send or receive so many bytes?
template <class Call>
bool passes(std::size_t bytes, Call&& call) {
  ssize_t passed = 0;
  do {
    passed = call();
  } while (passed < 0 && errno == EINTR);
  return passed == static_cast<ssize_t>(bytes);
}

bool send(int socket, const void* data, std::size_t size) {
  return passes(size, [&] { return ::send(socket, data, size, MSG_NOSIGNAL); });
}

bool receive(int socket, void* data, std::size_t size) {
  return passes(size, [&] { return ::recv(socket, data, size, 0); });
}

// A descriptor, and one byte, as some data must go along.
struct Message {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr header{};

  Message() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

bool send_descriptor(int socket, int descriptor) {
  Message message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  return passes(1, [&] { return ::sendmsg(socket, &message.header, MSG_NOSIGNAL); });
}

// Negative: none came.
Descriptor receive_descriptor(int socket) {
  Message message;
  int descriptor = -1;
  if (passes(1, [&] { return ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC); })) {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
    if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    }
  }
  return Descriptor(descriptor);
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
  Descriptor socket = new_socket();
  if (socket.number() < 0) return socket_error("socket");
  if (!at_name(::bind, socket, *name)) return socket_error("bind");
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
  if (!receive(client, key.data(), key.size())) return;
  Descriptors offered;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = offers_.find(key); known != offers_.end()) offered = known->second;
  }
  const std::uint64_t count = offered == nullptr ? 0 : offered->size();
  if (!send(client, &count, sizeof count)) return;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!send_descriptor(client, (*offered)[i].number())) return;
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
  const Descriptor socket = new_socket();
  if (socket.number() < 0) return socket_error("socket");
  set_patience(socket.number(), kClientPatience);
  if (!at_name(::connect, socket, from.name)) return socket_error("connect");
  std::uint64_t offered = 0;
  if (!send(socket.number(), from.key.data(), from.key.size()) ||
      !receive(socket.number(), &offered, sizeof offered)) {
    return socket_error("no answer");
  }
  if (offered != count) {
    return Error(ErrorCode::unknown_pointer, "the process that shares has freed the memory");
  }
  std::vector<Descriptor> taken;
  while (taken.size() < count) {
    taken.push_back(receive_descriptor(socket.number()));
    if (taken.back().number() < 0) {
      return Error(ErrorCode::unavailable,
                   fmt::format("{} of {} file descriptors came: the process that shares has ended, "
                               "or this one may open no more (ulimit -n)",
                               taken.size() - 1, count));
    }
  }
  return taken;
}

}  // namespace weir::pytorch
