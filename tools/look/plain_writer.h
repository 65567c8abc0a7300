// SPDX-License-Identifier: Apache-2.0
// Plain data (dictionaries, lists, strings, numbers) as JSON, or as a pickle that Python and
// PyTorch's viewer read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weir {

// Appends to a string that somebody else may empty meanwhile, between two calls of shared(). The
// caller sees to it that keys and values, begins and ends make sense. Not thread-safe.
class PlainWriter {
 public:
  virtual ~PlainWriter() = default;

  virtual void begin_dict() = 0;
  virtual void end_dict() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void key(std::string_view name) = 0;     // of a JsonWriter: one that needs no escapes
  virtual void string(std::string_view text) = 0;  // UTF-8; bytes that are not are replaced
  virtual void integer(std::int64_t value) = 0;
  virtual void unsigned_integer(std::uint64_t value) = 0;
  virtual void real(double value) = 0;
  virtual void boolean(bool value) = 0;
  virtual void finish() = 0;
  void member(std::string_view name, std::string_view text) { key(name), string(text); }
  void member(std::string_view name, std::uint64_t value) { key(name), unsigned_integer(value); }

  // The value that `write` writes, made once for each `id`, and referred to or copied afterwards.
  template <class Write>
  void shared(std::uint32_t id, const Write& write) {
    if (again(id)) return;
    begin_shared();
    write();
    end_shared(id);
  }

 protected:
  virtual bool again(std::uint32_t id) = 0;
  virtual void begin_shared() = 0;
  virtual void end_shared(std::uint32_t id) = 0;
};

class JsonWriter final : public PlainWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}
  void begin_dict() override { begin('{'); }
  void end_dict() override { end('}'); }
  void begin_list() override { begin('['); }
  void end_list() override { end(']'); }
  void key(std::string_view name) override;
  void string(std::string_view text) override;
  void integer(std::int64_t number) override;
  void unsigned_integer(std::uint64_t number) override;
  void real(double number) override;
  void boolean(bool is) override;
  void finish() override { out_ += '\n'; }

 protected:
  bool again(std::uint32_t id) override;
  void begin_shared() override;
  void end_shared(std::uint32_t id) override;

 private:
  void separate();
  void value(std::string_view json);
  void begin(char bracket);
  void end(char bracket);

  std::string& out_;
  bool first_ = true;       // nothing before the next value in its container
  std::size_t shared_ = 0;  // where the shared value begins, in out_
  std::unordered_map<std::uint32_t, std::string> kept_;
};

// Protocol 2, with no operation but those that make plain data. Ends lists of any length in
// batches, and refers to strings that were there before.
class PickleWriter final : public PlainWriter {
 public:
  explicit PickleWriter(std::string& out);
  void begin_dict() override { begin('}'); }
  void end_dict() override { end('u'); }
  void begin_list() override { begin(']'); }
  void end_list() override { end('e'); }
  void key(std::string_view name) override;
  void string(std::string_view text) override;
  void integer(std::int64_t value) override;
  void unsigned_integer(std::uint64_t value) override;
  void real(double value) override;
  void boolean(bool value) override;
  void finish() override { out_ += '.'; }

 protected:
  bool again(std::uint32_t id) override;
  void begin_shared() override {}
  void end_shared(std::uint32_t id) override;

 private:
  void begin(char make);
  void end(char close);
  void before_value();
  void bytes(std::uint64_t value, int count);  // of it, the lowest first
  void memo(char near, char far, std::uint32_t number);
  void text(std::string_view utf8);

  struct Container {
    bool dict;
    std::size_t values;
  };
  std::string& out_;
  std::vector<Container> open_;
  std::uint32_t memos_ = 0;
  std::unordered_map<std::string, std::uint32_t> strings_;  // -> memo
  std::unordered_map<std::uint32_t, std::uint32_t> kept_;   // shared id -> memo
};

// `text` with each byte that is no UTF-8 replaced; as it is, where all is.
std::string valid_utf8(std::string_view text);

}  // namespace weir
