// SPDX-License-Identifier: Apache-2.0
// Errors as values. Weir returns its failures; weir::Allocator and the memory resources turn them
// into exceptions. Otherwise only std::bad_alloc (the host has no memory) and what a program's own
// callback throws leave a call as exceptions.
#pragma once

#include <cassert>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace weir {

enum class ErrorCode {
  out_of_memory,     // the device or the limit has no room; the message says what holds memory
  invalid_argument,  // the caller's mistake; the message names the argument and the remedy
  unknown_pointer,   // not the start of a live block (freed twice, or never allocated here)
  device,            // the driver refused a call; the message names the call and its error
  capture,           // the call is not legal in the stream's capture
  unavailable,       // something this machine lacks (no driver, no GPU)
  invalid_input,     // a file can't be read, parsed or written; the message names it
  asleep,            // the memory sleeps (HeapTags::sleep()); the message names the tag
};

std::string_view name_of(ErrorCode code);

// Why something failed: a code to act on, a message for a person. One pointer wide.
class Error {
 public:
  Error(ErrorCode code, std::string message, int driver_code = 0)
      : detail_(std::make_unique<Detail>(Detail{code, std::move(message), driver_code})) {}
  Error(const Error& other) : detail_(std::make_unique<Detail>(*other.detail_)) {}
  Error& operator=(const Error& other) { return *this = Error(other); }
  Error(Error&&) noexcept = default;
  Error& operator=(Error&&) noexcept = default;

  ErrorCode code() const { return detail_->code; }
  const std::string& message() const { return detail_->message; }
  // The driver's own number for what it refused (CUresult); 0: unknown.
  int driver_code() const { return detail_->driver_code; }

 private:
  struct Detail {
    ErrorCode code;
    std::string message;
    int driver_code;
  };
  std::unique_ptr<Detail> detail_;
};

// Prints `error` and aborts.
[[noreturn]] void abort_without_value(const Error& error);

// A T, or why there is none. value() of a failed result prints the error and aborts. * and -> only
// assert that there is a T: with NDEBUG they are undefined if there is none, as std::expected's
// are.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return check_value(), **this; }
  const T& value() const& { return check_value(), **this; }
  T&& value() && { return check_value(), *std::move(*this); }
  T& operator*() & { return assert(ok()), *std::get_if<T>(&state_); }
  const T& operator*() const& { return assert(ok()), *std::get_if<T>(&state_); }
  T&& operator*() && { return assert(ok()), std::move(*std::get_if<T>(&state_)); }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

  const Error& error() const& { return assert(!ok()), *std::get_if<Error>(&state_); }
  Error&& error() && { return assert(!ok()), std::move(*std::get_if<Error>(&state_)); }

 private:
  void check_value() const {
    if (!ok()) [[unlikely]]
      abort_without_value(error());
  }

  std::variant<T, Error> state_;
};

// Success, or why not.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::make_unique<Error>(std::move(error))) {}  // NOLINT

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return assert(!ok()), *error_; }
  Error&& error() && { return assert(!ok()), std::move(*error_); }

 private:
  std::unique_ptr<Error> error_;
};
using Status = Result<void>;

}  // namespace weir
