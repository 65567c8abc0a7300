// SPDX-License-Identifier: Apache-2.0
// Reads the plain subset of Python's pickles: dictionaries, lists, tuples, strings, numbers, None;
// and JSON, as the same values.
//
// What would make anything else (an object, a call, bytes) is refused, so reading a file from
// anywhere runs nothing. Memory is bounded by some forty times the file's size. Values that a file
// refers to twice are one value; a value may contain itself.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/result.h"

namespace weir {

// A value of a Pickle, which must outlive it. Cheap to copy.
class PickleValue {
 public:
  enum class Kind : std::uint8_t { none, boolean, integer, real, string, list, dict };
  PickleValue() = default;

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  // Of an integer or boolean; of others 0. (Integers from 2^63 to 2^64 - 1 are negative here.)
  std::int64_t integer() const;
  double real() const;                           // of a real; else 0
  std::string_view string() const;               // of a string; else ""
  const std::vector<PickleValue>& list() const;  // of a list or tuple; else empty
  // What a dictionary has under `key`; none: not there, or no dictionary.
  PickleValue at(std::string_view key) const;
  // Of lists, dictionaries and strings: the same for two that are one.
  std::uint64_t identity() const { return bits_; }

 private:
  friend class PickleParser;
  using List = std::vector<PickleValue>;  // of a dict: key, value, key, value ...

  PickleValue(Kind kind, std::uint64_t bits) : kind_(kind), bits_(bits) {}
  PickleValue(Kind kind, const void* kept)
      : PickleValue(kind, static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(kept))) {}
  List* kept_list() const { return reinterpret_cast<List*>(static_cast<std::uintptr_t>(bits_)); }

  Kind kind_ = Kind::none;
  std::uint64_t bits_ = 0;  // the number; or the address of what is kept in the Pickle
};

// A whole pickle, and the bytes it was read from. Of JSON: those of the pickle that says the same.
class Pickle {
 public:
  // Errors: invalid_input: "NAME: byte N: what is wrong", or that the JSON is damaged.
  static Result<Pickle> parse(std::vector<char> bytes, const std::string& name);
  // The file, which may be compressed with gzip. Errors: as above; it can't be read; it is larger
  // than 4 GiB.
  static Result<Pickle> read(const std::string& path);

  PickleValue root() const { return root_; }

 private:
  friend class PickleParser;
  std::vector<char> bytes_;
  std::deque<std::vector<PickleValue>> lists_;
  std::deque<std::string_view> strings_;  // into bytes_
  PickleValue root_;
};

}  // namespace weir
