// SPDX-License-Identifier: Apache-2.0
// How the C interface says what went wrong: a status, and a message for the calling thread.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "weir/allocator.h"
#include "weir/weir.h"

struct weir_allocator_t {
  explicit weir_allocator_t(weir::Config config) : allocator(std::move(config)) {}
  weir::Allocator allocator;
};

namespace weir::c {

inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Host memory may be what ran out: then the message is cut rather than the promise broken.
inline weir_status_t fail(weir_status_t status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

inline weir_status_t status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::out_of_memory:
      return WEIR_OUT_OF_MEMORY;
    case ErrorCode::invalid_argument:
      return WEIR_INVALID_ARGUMENT;
    case ErrorCode::unknown_pointer:
      return WEIR_UNKNOWN_POINTER;
    case ErrorCode::device:
      return WEIR_DEVICE_ERROR;
    case ErrorCode::capture:
      return WEIR_CAPTURE_ERROR;
    case ErrorCode::unavailable:
      return WEIR_UNAVAILABLE;
    case ErrorCode::invalid_input:
      return WEIR_INVALID_INPUT;
    case ErrorCode::asleep:
      return WEIR_ASLEEP;
  }
  return WEIR_INTERNAL_ERROR;
}

// Runs `body`, and turns what it throws into a status.
template <class Body>
weir_status_t guarded(Body body) noexcept {
  try {
    body();
    return WEIR_OK;
  } catch (const OutOfMemory& error) {
    return fail(WEIR_OUT_OF_MEMORY, error.what());
  } catch (const Exception& error) {
    return fail(status_of(error.code()), error.what());
  } catch (const std::exception& error) {
    return fail(WEIR_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail(WEIR_INTERNAL_ERROR, "an exception of an unknown type");
  }
}

// The same for a call on an allocator, which must not be null.
template <class Body>
weir_status_t guarded_on(weir_allocator_t* allocator, Body body) noexcept {
  if (allocator == nullptr) return fail(WEIR_INVALID_ARGUMENT, "allocator is null");
  return guarded([&] { body(allocator->allocator); });
}

[[noreturn]] inline void invalid(const std::string& message) {
  throw Exception(ErrorCode::invalid_argument, message);
}

// What `pointer` points to, which the caller has to give.
template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) invalid(std::string(name) + " is null");
  return *pointer;
}
inline void given(const void* pointer, const char* name) {
  if (pointer == nullptr) invalid(std::string(name) + " is null");
}

// A value or a status of the core's, or the exception for its error.
template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) throw Exception(result.error().code(), result.error().message());
  return *std::move(result);
}
inline void check(const Status& status) {
  if (!status.ok()) throw Exception(status.error().code(), status.error().message());
}

}  // namespace weir::c
