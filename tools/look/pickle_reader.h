// SPDX-License-Identifier: Apache-2.0
// Reads the plain subset of Python's pickles: dictionaries, lists, tuples, strings, numbers, None;
// and JSON, as the same values.
//
// What would make anything else (an object, a call, bytes) is refused, so reading a file from
// anywhere runs nothing. The file is read piece by piece. Dictionaries with the same keys keep them
// once, as do lists of the same values; so a snapshot takes one to two times its size, and any file
// at most some forty times. Values that a file refers to twice are one value; a value
// may contain itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "weir/result.h"

namespace weir {

// A value of a Pickle, which must outlive it. Cheap to copy.
class PickleValue {
 public:
  enum class Kind : std::uint8_t { none, boolean, integer, real, string, list, dict };
  PickleValue() = default;

  Kind kind() const { return is_wide() ? Kind::integer : static_cast<Kind>(word_ & kTags); }
  bool is(Kind kind) const { return this->kind() == kind; }
  // Of an integer or boolean; of others 0. (Integers from 2^63 to 2^64 - 1 are negative here.)
  std::int64_t integer() const;
  double real() const;                        // of a real; else 0
  std::string_view string() const;            // of a string; else ""
  std::span<const PickleValue> list() const;  // of a list or tuple; else empty
  // What a dictionary has under `key`; none: not there, or no dictionary.
  PickleValue at(std::string_view key) const;
  // Of dictionaries and strings: the same for two that are one; of lists: and if they have the same
  // values.
  std::uint64_t identity() const;

 private:
  friend class PickleParser;
  // A list's values; or those of a dictionary, and as many keys. In the Pickle.
  struct Kept {
    PickleValue *values, *keys;
    std::uint32_t size, room;
  };
  static constexpr std::uint64_t kTags = 7, kWide = 7;  // the lowest bits: Kind, or kWide

  PickleValue(std::uint64_t tag, std::uint64_t bits) : word_(tag | bits) {}
  PickleValue(Kind kind, const void* kept)
      : PickleValue(static_cast<std::uint64_t>(kind), reinterpret_cast<std::uintptr_t>(kept)) {}
  bool is_wide() const { return (word_ & kTags) == kWide; }
  template <class T>
  T* kept() const {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(word_ & ~kTags));
  }

  std::uint64_t word_ = 0;  // a number, or where in the Pickle a multiple of 8 is kept; and its tag
};

// A whole pickle, or JSON as the pickle that says the same.
class Pickle {
 public:
  // Errors: invalid_input: "NAME: byte N: what is wrong", or that the JSON is damaged.
  static Result<Pickle> parse(std::string bytes, const std::string& name);
  // The file, which may be compressed with gzip. `progress` is called with the bytes of the file
  // that were read, and all. Errors: as above; it can't be read; JSON is larger than 4 GiB.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  static Result<Pickle> read(const std::string& path, const Progress& progress = {});

  PickleValue root() const { return root_; }

 private:
  friend class PickleParser;
  std::unique_ptr<std::pmr::monotonic_buffer_resource> kept_ =
      std::make_unique<std::pmr::monotonic_buffer_resource>(std::size_t{1} << 16);
  std::unordered_set<std::string> strings_;
  PickleValue root_;
};

// "the JSON is damaged at line 3, column 8: ...", or was cut off. `why`: what nlohmann::json says
// of byte `at` of `size`.
std::string damaged_json(std::string_view why, std::size_t at, std::size_t size);

}  // namespace weir
