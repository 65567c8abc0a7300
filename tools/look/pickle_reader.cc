// SPDX-License-Identifier: Apache-2.0
// Source of the format: CPython's Lib/pickletools.py, protocols 2 to 5.
#include "look/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "look/plain_writer.h"
#include "look/whole_file.h"

namespace weir {
namespace {

using Kind = PickleValue::Kind;

enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kTuple = 't',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kNoneValue = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kProtocol = 0x80,
  kFrame = 0x95,
};

// The bytes of a pickle, as they come.
class PickleBytes {
 public:
  // Puts at most so many bytes there. Returns how many; 0: there are no more.
  using More = std::function<Result<std::size_t>(char* into, std::size_t most)>;
  explicit PickleBytes(std::string first, More more = {})
      : buffer_(std::move(first)), more_(std::move(more)) {}

  // The next bytes, which are there until the next call; null: there are fewer.
  const char* take(std::size_t count) {
    while (buffer_.size() - at_ < count) {
      if (!more_ || !status_) return nullptr;
      begin_ += at_;
      buffer_.erase(0, std::exchange(at_, 0));
      const std::size_t before = buffer_.size();
      buffer_.resize(before + kPiece);
      const Result<std::size_t> read = more_(buffer_.data() + before, kPiece);
      if (!read) status_ = read.error();
      buffer_.resize(before + (read ? *read : 0));
      if (buffer_.size() == before) return nullptr;
    }
    at_ += count;
    return buffer_.data() + at_ - count;
  }
  std::uint64_t place() const { return begin_ + at_; }
  Status& status() { return status_; }  // of reading

  static constexpr std::size_t kPiece = std::size_t{1} << 20;

 private:
  std::string buffer_;
  const More more_;
  std::uint64_t begin_ = 0;  // of buffer_ in the pickle
  std::size_t at_ = 0;
  Status status_;
};

}  // namespace

std::int64_t PickleValue::integer() const {
  if (is_wide()) return *kept<std::int64_t>();
  const bool has = is(Kind::integer) || is(Kind::boolean);
  return has ? static_cast<std::int64_t>(word_) >> 3 : 0;
}

double PickleValue::real() const { return is(Kind::real) ? *kept<double>() : 0; }

std::string_view PickleValue::string() const {
  return is(Kind::string) ? *kept<const std::string>() : std::string_view();
}

std::span<const PickleValue> PickleValue::list() const {
  if (!is(Kind::list)) return {};
  return {kept<Kept>()->values, kept<Kept>()->size};
}

std::uint64_t PickleValue::identity() const {
  return is(Kind::list) ? reinterpret_cast<std::uintptr_t>(list().data()) : word_;
}

PickleValue PickleValue::at(std::string_view key) const {
  if (!is(Kind::dict)) return {};
  const Kept& items = *kept<Kept>();
  for (std::size_t i = items.size; i-- > 0;) {  // of two with a key, the later one counts
    if (items.keys[i].is(Kind::string) && items.keys[i].string() == key) return items.values[i];
  }
  return {};
}

// One parse. Each opcode is done by the first of the functions below that knows it.
class PickleParser {
 public:
  PickleParser(Pickle& pickle, PickleBytes bytes, const std::string& name)
      : pickle_(pickle), bytes_(std::move(bytes)), name_(name) {}

  Status run() {
    while (!done_) {
      opcode_at_ = bytes_.place();
      const std::optional<unsigned char> opcode = byte();
      if (opcode && !number(*opcode) && !text(*opcode) && !container(*opcode) && !tuple(*opcode) &&
          !memo(*opcode)) {
        control(*opcode);
      }
      if (!bytes_.status()) return std::move(bytes_.status());
      if (!wrong_.empty()) {
        return Error(ErrorCode::invalid_input,
                     fmt::format("{}: byte {}: {}; copy the file again, or write it again with "
                                 "torch.cuda.memory._dump_snapshot()",
                                 name_, opcode_at_, wrong_));
      }
    }
    return {};
  }

 private:
  void wrong(std::string_view what) {
    if (wrong_.empty()) wrong_ = what;
  }

  std::optional<unsigned char> byte() {
    const std::optional<std::uint64_t> value = little_endian(1);
    if (!value) return std::nullopt;
    return static_cast<unsigned char>(*value);
  }

  std::optional<std::uint64_t> little_endian(std::size_t count) {
    const char* const bytes = bytes_.take(count);
    if (bytes == nullptr) return wrong("the pickle ends here: it was cut off"), std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return value;
  }

  void push(PickleValue value) { stack_.push_back(value); }
  void push_number(Kind kind, std::int64_t value) {
    const std::uint64_t bits = static_cast<std::uint64_t>(value) << 3;
    const bool fits = static_cast<std::int64_t>(bits) >> 3 == value;
    if (fits) return push({static_cast<std::uint64_t>(kind), bits});
    push({PickleValue::kWide, reinterpret_cast<std::uintptr_t>(kept(value))});
  }

  bool number(unsigned char opcode);
  void long_integer();
  bool text(unsigned char opcode);
  bool container(unsigned char opcode);
  bool tuple(unsigned char opcode);
  bool memo(unsigned char opcode);
  void control(unsigned char opcode);

  using Values = std::span<const PickleValue>;
  using Kept = PickleValue::Kept;

  template <class T>
  T* kept(T value) {
    return new (pickle_.kept_->allocate(sizeof(T), alignof(T))) T(value);
  }
  // A copy of `values`, with room for as many.
  PickleValue* copied(Values values, std::size_t room);
  // A copy that others may have, too.
  PickleValue* shared(Values values);
  std::optional<std::size_t> last_mark();
  void extend(Kind kind, std::size_t from);
  void extend(Kept& into, Values values, Values keys);

  Pickle& pickle_;
  PickleBytes bytes_;
  const std::string& name_;
  std::uint64_t opcode_at_ = 0;
  std::vector<PickleValue> stack_, memo_;
  std::vector<PickleValue> keys_, values_;                     // of the dictionary that is extended
  std::unordered_map<std::string_view, PickleValue*> shared_;  // by their bytes
  std::vector<std::size_t> marks_;                             // sizes of the stack
  std::string wrong_;
  bool done_ = false;
};

bool PickleParser::number(unsigned char opcode) {
  std::optional<std::uint64_t> value;
  switch (opcode) {
    case kNoneValue:
      push({});
      return true;
    case kNewTrue:
    case kNewFalse:
      push_number(Kind::boolean, opcode == kNewTrue);
      return true;
    case kBinInt1:
    case kBinInt2:
      if ((value = little_endian(opcode == kBinInt1 ? 1 : 2))) {
        push_number(Kind::integer, static_cast<std::int64_t>(*value));
      }
      return true;
    case kBinInt:
      if ((value = little_endian(4))) {
        push_number(Kind::integer, static_cast<std::int32_t>(*value));
      }
      return true;
    case kLong1:
      long_integer();
      return true;
    case kBinFloat:  // the one number with its highest byte first
      if (!(value = little_endian(8))) return true;
      push({Kind::real, kept(std::bit_cast<double>(__builtin_bswap64(*value)))});
      return true;
    default:
      return false;
  }
}

// Two's complement, the lowest byte first, as many as it takes.
void PickleParser::long_integer() {
  const std::optional<unsigned char> count = byte();
  if (!count) return;
  const std::size_t low = std::min<std::size_t>(*count, 8);
  const std::optional<std::uint64_t> value = little_endian(low);
  if (!value) return;
  if (*count > 8) {
    const std::optional<unsigned char> ninth = byte();
    if (!ninth) return;
    if (*count > 9 || *ninth != 0) return wrong("an integer of more than 64 bits");
  }
  std::uint64_t bits = *value;
  if (low > 0 && low < 8 && (bits >> (8 * low - 1) & 1) != 0)
    bits |= ~std::uint64_t{0} << (8 * low);
  push_number(Kind::integer, static_cast<std::int64_t>(bits));
}

bool PickleParser::text(unsigned char opcode) {
  std::size_t width = 0;
  if (opcode == kShortBinUnicode) width = 1;
  if (opcode == kBinUnicode) width = 4;
  if (opcode == kBinUnicode8) width = 8;
  if (width == 0) return false;
  const std::optional<std::uint64_t> length = little_endian(width);
  if (!length) return true;
  const char* const bytes = bytes_.take(*length);
  if (bytes == nullptr) return wrong("the pickle ends within this string: it was cut off"), true;
  push({Kind::string, &*pickle_.strings_.emplace(bytes, *length).first});
  return true;
}

std::optional<std::size_t> PickleParser::last_mark() {
  if (marks_.empty() || marks_.back() > stack_.size()) {
    wrong("the end of a list or dictionary that never began");
    return std::nullopt;
  }
  const std::size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

// Adds the values from `from` on to the list or dictionary below them.
void PickleParser::extend(Kind kind, std::size_t from) {
  if (from == 0 || from > stack_.size() || !stack_[from - 1].is(kind)) {
    return wrong("values for a list or dictionary that is not there");
  }
  if (kind == Kind::dict && (stack_.size() - from) % 2 != 0) return wrong("a key without a value");
  Kept& into = *stack_[from - 1].kept<Kept>();
  const Values added = Values(stack_).subspan(from);
  if (added.size() + into.size > UINT32_MAX) return wrong("more values than are read in one list");
  if (kind == Kind::list) {
    extend(into, added, {});
  } else {
    keys_.clear();
    values_.clear();
    for (std::size_t i = 0; i < added.size(); ++i)
      (i % 2 == 0 ? keys_ : values_).push_back(added[i]);
    extend(into, values_, keys_);
  }
  stack_.resize(from);
}

void PickleParser::extend(Kept& into, Values values, Values keys) {
  if (values.empty()) return;
  const std::size_t size = into.size + values.size();
  if (into.size == 0) {
    into.values = keys.empty() ? shared(values) : copied(values, values.size());
    into.keys = keys.empty() ? nullptr : shared(keys);
    into.room = static_cast<std::uint32_t>(size);
  } else {
    if (size > into.room) {
      const std::size_t room =
          std::min<std::size_t>(std::max(size, size_t{2} * into.size), UINT32_MAX);
      into.values = copied({into.values, into.size}, room);
      if (!keys.empty()) into.keys = copied({into.keys, into.size}, room);
      into.room = static_cast<std::uint32_t>(room);
    }
    std::copy(values.begin(), values.end(), into.values + into.size);
    if (!keys.empty()) std::copy(keys.begin(), keys.end(), into.keys + into.size);
  }
  into.size = static_cast<std::uint32_t>(size);
}

PickleValue* PickleParser::copied(Values values, std::size_t room) {
  auto* const copy = static_cast<PickleValue*>(
      pickle_.kept_->allocate(room * sizeof(PickleValue), alignof(PickleValue)));
  std::copy(values.begin(), values.end(), copy);
  return copy;
}

PickleValue* PickleParser::shared(Values values) {
  const auto bytes = [](Values of) {
    return std::string_view(reinterpret_cast<const char*>(of.data()), of.size_bytes());
  };
  if (const auto same = shared_.find(bytes(values)); same != shared_.end()) return same->second;
  PickleValue* const copy = copied(values, values.size());
  return shared_[bytes({copy, values.size()})] = copy;
}

bool PickleParser::container(unsigned char opcode) {
  switch (opcode) {
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kEmptyList:
    case kEmptyDict:
      push({opcode == kEmptyList ? Kind::list : Kind::dict, kept(Kept{})});
      return true;
    case kAppend:
    case kSetItem: {
      const std::size_t count = opcode == kAppend ? 1 : 2;
      if (stack_.size() < count) return wrong("a value for a list or dictionary is missing"), true;
      extend(opcode == kAppend ? Kind::list : Kind::dict, stack_.size() - count);
      return true;
    }
    case kAppends:
    case kSetItems:
      if (const std::optional<std::size_t> mark = last_mark()) {
        extend(opcode == kAppends ? Kind::list : Kind::dict, *mark);
      }
      return true;
    default:
      return false;
  }
}

bool PickleParser::tuple(unsigned char opcode) {
  std::optional<std::size_t> from;
  if (opcode == kTuple) {
    if (!(from = last_mark())) return true;
  } else if (opcode == kEmptyTuple || (opcode >= kTuple1 && opcode <= kTuple3)) {
    const std::size_t count = opcode == kEmptyTuple ? 0 : std::size_t{opcode} - kTuple1 + 1;
    if (stack_.size() < count) return wrong("a value for a tuple is missing"), true;
    from = stack_.size() - count;
  } else {
    return false;
  }
  const Values values = Values(stack_).subspan(*from);
  Kept* const tuple = kept(Kept{});
  extend(*tuple, values, {});
  stack_.resize(*from);
  push({Kind::list, tuple});
  return true;
}

bool PickleParser::memo(unsigned char opcode) {
  const bool put = opcode == kBinPut || opcode == kLongBinPut || opcode == kMemoize;
  if (!put && opcode != kBinGet && opcode != kLongBinGet) return false;
  const std::size_t width = opcode == kBinPut || opcode == kBinGet ? 1 : 4;
  const std::optional<std::uint64_t> index =
      opcode == kMemoize ? memo_.size() : little_endian(width);
  if (!index) return true;
  if (!put) {
    *index < memo_.size() ? push(memo_[*index]) : wrong("a value that was not there before");
  } else if (stack_.empty() || *index > bytes_.place()) {  // no more values than bytes
    wrong("no value to keep, or a wild number for it");
  } else {
    if (*index >= memo_.size()) memo_.resize(*index + 1);
    memo_[*index] = stack_.back();
  }
  return true;
}

void PickleParser::control(unsigned char opcode) {
  if (opcode == kProtocol) {
    const std::optional<unsigned char> version = byte();
    if (version && (*version < 2 || *version > 5)) {
      wrong(fmt::format("protocol {}: only 2 to 5 are read", *version));
    }
  } else if (opcode == kFrame) {
    (void)little_endian(8);
  } else if (opcode == kStop) {
    if (stack_.size() != 1) return wrong("the end, where one value was to be left");
    pickle_.root_ = stack_.back();
    done_ = true;
  } else {
    wrong(opcode_at_ == 0 ? "no pickle begins so; torch.cuda.memory._dump_snapshot() writes one"
                          : fmt::format("opcode 0x{:02x} may run code, and is refused", opcode));
  }
}

namespace {

// Writes JSON as the pickle of the same values. (A null is no number and no list; so is "".)
class JsonAsPickle final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonAsPickle(std::string& pickle) : writer_(pickle) {}

  bool null() override { return writer_.string(""), true; }
  bool boolean(bool value) override { return writer_.boolean(value), true; }
  bool number_integer(std::int64_t value) override { return writer_.integer(value), true; }
  bool number_unsigned(std::uint64_t value) override {
    return writer_.unsigned_integer(value), true;
  }
  bool number_float(double value, const std::string&) override { return writer_.real(value), true; }
  bool string(std::string& value) override { return writer_.string(value), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return writer_.begin_dict(), true; }
  bool key(std::string& name) override { return writer_.key(name), true; }
  bool end_object() override { return writer_.end_dict(), true; }
  bool start_array(std::size_t) override { return writer_.begin_list(), true; }
  bool end_array() override { return writer_.end_list(), true; }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return damage = error.what(), damaged_at = at, false;
  }
  void finish() { writer_.finish(); }

  std::string damage;
  std::size_t damaged_at = 0;

 private:
  PickleWriter writer_;
};

bool is_json(std::string_view bytes) {
  const auto first =
      std::find_if(bytes.begin(), bytes.end(), [](char c) { return c > ' ' || c < 0; });
  return first != bytes.end() && *first == '{';
}

}  // namespace

std::string damaged_json(std::string_view why, std::size_t at, std::size_t size) {
  constexpr std::string_view kRemedy = "; copy the file again, or write it again";
  if (at > size) return fmt::format("the JSON was cut off: it ends at byte {}{}", size, kRemedy);
  return fmt::format("the JSON is damaged {}{}",
                     why.substr(std::min(why.find("at line"), why.size())), kRemedy);
}

Result<Pickle> Pickle::parse(std::string bytes, const std::string& name) {
  if (is_json(bytes)) {
    std::string text;
    JsonAsPickle json(text);
    if (!nlohmann::json::sax_parse(bytes, &json)) {
      return Error(ErrorCode::invalid_input,
                   name + ": " + damaged_json(json.damage, json.damaged_at, bytes.size()));
    }
    json.finish();
    bytes = std::move(text);
  }
  Pickle pickle;
  Status status = PickleParser(pickle, PickleBytes(std::move(bytes)), name).run();
  return status ? std::move(pickle) : Result<Pickle>(std::move(status).error());
}

Result<Pickle> Pickle::read(const std::string& path, const Progress& progress) {
  const GzipFile file = open_gzip(path);
  if (file == nullptr) return unreadable(path, std::strerror(errno));
  std::error_code unknown;
  const std::uint64_t all = std::filesystem::file_size(path, unknown);
  const auto more = [&](char* into, std::size_t most) {
    if (progress && !unknown) progress(static_cast<std::uint64_t>(gzoffset(file.get())), all);
    return read_piece(file.get(), path, into, most);
  };
  std::string first(PickleBytes::kPiece, '\0');
  const Result<std::size_t> size = more(first.data(), first.size());
  if (!size) return size.error();
  first.resize(*size);
  if (is_json(first)) {
    Result<std::string> bytes = read_whole_file(path);
    return bytes ? parse(*std::move(bytes), path) : Result<Pickle>(std::move(bytes).error());
  }
  Pickle pickle;
  Status status = PickleParser(pickle, PickleBytes(std::move(first), more), path).run();
  return status ? std::move(pickle) : Result<Pickle>(std::move(status).error());
}

}  // namespace weir
