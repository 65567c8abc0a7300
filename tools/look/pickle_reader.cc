// SPDX-License-Identifier: Apache-2.0
// Source of the format: CPython's Lib/pickletools.py, protocols 2 to 5.
#include "look/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

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

}  // namespace

std::int64_t PickleValue::integer() const {
  return kind_ == Kind::integer || kind_ == Kind::boolean ? static_cast<std::int64_t>(bits_) : 0;
}

double PickleValue::real() const { return kind_ == Kind::real ? std::bit_cast<double>(bits_) : 0; }

std::string_view PickleValue::string() const {
  if (kind_ != Kind::string) return {};
  return *reinterpret_cast<const std::string_view*>(static_cast<std::uintptr_t>(bits_));
}

const std::vector<PickleValue>& PickleValue::list() const {
  static const List kEmpty;
  return kind_ == Kind::list ? *kept_list() : kEmpty;
}

PickleValue PickleValue::at(std::string_view key) const {
  if (kind_ != Kind::dict) return {};
  const List& items = *kept_list();
  for (std::size_t i = items.size(); i >= 2; i -= 2) {  // of two with a key, the later one counts
    const PickleValue& name = items[i - 2];
    if (name.is(Kind::string) && name.string() == key) return items[i - 1];
  }
  return {};
}

// One parse. Each opcode is done by the first of the functions below that knows it.
class PickleParser {
 public:
  PickleParser(Pickle& pickle, const std::string& name)
      : pickle_(pickle), bytes_(pickle.bytes_.data(), pickle.bytes_.size()), name_(name) {}

  Status run() {
    while (!done_) {
      opcode_at_ = at_;
      const std::optional<unsigned char> opcode = byte();
      if (opcode && !number(*opcode) && !text(*opcode) && !container(*opcode) && !tuple(*opcode) &&
          !memo(*opcode)) {
        control(*opcode);
      }
      if (!wrong_.empty()) {
        return Error(ErrorCode::invalid_input,
                     fmt::format("{}: byte {}: {}", name_, opcode_at_, wrong_));
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
    if (bytes_.size() - at_ < count)
      return wrong("the pickle ends here: it was cut off"), std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
    }
    at_ += count;
    return value;
  }

  void push(PickleValue value) { stack_.push_back(value); }
  void push_number(Kind kind, std::int64_t value) {
    push({kind, static_cast<std::uint64_t>(value)});
  }

  bool number(unsigned char opcode);
  void long_integer();
  bool text(unsigned char opcode);
  bool container(unsigned char opcode);
  bool tuple(unsigned char opcode);
  bool memo(unsigned char opcode);
  void control(unsigned char opcode);

  PickleValue make(Kind kind, std::vector<PickleValue> values) {
    return {kind, &pickle_.lists_.emplace_back(std::move(values))};
  }
  // The values from `from` on, off the stack.
  std::vector<PickleValue> take(std::size_t from) {
    std::vector<PickleValue> values(stack_.begin() + static_cast<std::ptrdiff_t>(from),
                                    stack_.end());
    stack_.resize(from);
    return values;
  }
  std::optional<std::size_t> last_mark();
  void extend(Kind kind, std::size_t from);

  Pickle& pickle_;
  const std::string_view bytes_;
  const std::string& name_;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::vector<PickleValue> stack_, memo_;
  std::vector<std::size_t> marks_;  // sizes of the stack
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
      push({Kind::real, __builtin_bswap64(*value)});
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
  push({Kind::integer, bits});
}

bool PickleParser::text(unsigned char opcode) {
  std::size_t width = 0;
  if (opcode == kShortBinUnicode) width = 1;
  if (opcode == kBinUnicode) width = 4;
  if (opcode == kBinUnicode8) width = 8;
  if (width == 0) return false;
  const std::optional<std::uint64_t> length = little_endian(width);
  if (!length) return true;
  if (*length > bytes_.size() - at_) {
    wrong("the pickle ends within this string: it was cut off");
    return true;
  }
  const std::string_view& kept = pickle_.strings_.emplace_back(bytes_.substr(at_, *length));
  at_ += *length;
  push({Kind::string, &kept});
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
  std::vector<PickleValue>& into = *stack_[from - 1].kept_list();
  into.insert(into.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
  stack_.resize(from);
}

bool PickleParser::container(unsigned char opcode) {
  switch (opcode) {
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kEmptyList:
    case kEmptyDict:
      push(make(opcode == kEmptyList ? Kind::list : Kind::dict, {}));
      return true;
    case kAppend:
    case kSetItem: {
      const std::size_t count = opcode == kAppend ? 1 : 2;
      if (stack_.size() < count) {
        wrong("a value for a list or dictionary is missing");
      } else {
        extend(opcode == kAppend ? Kind::list : Kind::dict, stack_.size() - count);
      }
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
  switch (opcode) {
    case kTuple:
      if (!(from = last_mark())) return true;
      break;
    case kEmptyTuple:
      from = stack_.size();
      break;
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      const std::size_t count = std::size_t{opcode} - kTuple1 + 1;
      if (stack_.size() < count) {
        wrong("a value for a tuple is missing");
        return true;
      }
      from = stack_.size() - count;
      break;
    }
    default:
      return false;
  }
  std::vector<PickleValue> values = take(*from);
  push(make(Kind::list, std::move(values)));
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
  } else if (stack_.empty() || *index > at_) {  // no more values than bytes
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
    wrong(
        fmt::format("opcode 0x{:02x} makes more than plain data, and is refused; write the "
                    "snapshot with torch.cuda.memory._dump_snapshot()",
                    opcode));
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
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }
  void finish() { writer_.finish(); }

 private:
  PickleWriter writer_;
};

bool is_json(const std::vector<char>& bytes) {
  const auto first =
      std::find_if(bytes.begin(), bytes.end(), [](char c) { return c > ' ' || c < 0; });
  return first != bytes.end() && *first == '{';
}

}  // namespace

Result<Pickle> Pickle::parse(std::vector<char> bytes, const std::string& name) {
  if (is_json(bytes)) {
    std::string text;
    JsonAsPickle json(text);
    if (!nlohmann::json::sax_parse(bytes, &json)) {
      return Error(ErrorCode::invalid_input, name + ": the JSON is cut off or damaged");
    }
    json.finish();
    bytes.assign(text.begin(), text.end());
  }
  Pickle pickle;
  pickle.bytes_ = std::move(bytes);
  if (Status status = PickleParser(pickle, name).run(); !status.ok()) return status.error();
  return pickle;
}

Result<Pickle> Pickle::read(const std::string& path) {
  Result<std::vector<char>> bytes = read_whole_file(path);
  if (!bytes.ok()) return std::move(bytes).error();
  return parse(*std::move(bytes), path);
}

}  // namespace weir
