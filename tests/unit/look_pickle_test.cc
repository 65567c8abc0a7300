// SPDX-License-Identifier: Apache-2.0
// The pickle reader: what it reads, and that it refuses the rest with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "look/pickle_reader.h"
#include "look/plain_writer.h"
#include "look/pytorch_trace.h"

namespace weir {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): ""s keeps zeros
using Kind = PickleValue::Kind;
using testing::StartsWith;

Result<Pickle> parse(const std::string& bytes) { return Pickle::parse(bytes, "p"); }

TEST(PickleReader, ReadsNumbersAsPythonWritesThem) {
  const Result<Pickle> pickle = parse(
      "\x80\x04]("
      "K\xffM\xff\xffJ\xfe\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x06\x00\x00\x00\x00\x00\x7f"
      "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"
      "G\xbf\xf8\x00\x00\x00\x00\x00\x00\x88\x89Ne."s);
  ASSERT_TRUE(pickle.ok()) << pickle.error().message();
  const std::span<const PickleValue> values = pickle->root().list();
  ASSERT_EQ(values.size(), 11U);
  EXPECT_EQ(values[0].integer(), 255);
  EXPECT_EQ(values[1].integer(), 65535);
  EXPECT_EQ(values[2].integer(), -2);
  EXPECT_EQ(values[3].integer(), 0);
  EXPECT_EQ(values[4].integer(), -128);
  EXPECT_EQ(values[5].integer(), std::int64_t{0x7f} << 40);
  EXPECT_EQ(static_cast<std::uint64_t>(values[6].integer()), UINT64_MAX);
  EXPECT_EQ(values[7].real(), -1.5);
  EXPECT_EQ(values[8].integer(), 1);
  EXPECT_TRUE(values[9].is(Kind::boolean));
  EXPECT_TRUE(values[10].is(Kind::none));
}

TEST(PickleReader, ValueThatIsReferredToTwiceIsOne) {
  const Result<Pickle> pickle = parse(
      "\x80\x02](]q\x00K\x01"
      "ah\x00]K\x02"
      "ae."s);
  ASSERT_TRUE(pickle.ok()) << pickle.error().message();
  const std::span<const PickleValue> values = pickle->root().list();
  EXPECT_EQ(values[0].identity(), values[1].identity());
  EXPECT_NE(values[0].identity(), values[2].identity());
}

TEST(PickleReader, RefusesWithPlaceAndReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "byte 0: the pickle ends here"},
      {"\x80\x01N.", "byte 0: protocol 1"},
      {"\x80\x06N.", "byte 0: protocol 6"},
      {"\x80\x02N",
       "byte 3: the pickle ends here: it was cut off; copy the file again, or write "
       "it again with torch.cuda.memory._dump_snapshot()"},
      {"\x80\x02.", "byte 2: the end, where one value was to be left"},
      {"\x80\x02NN.", "byte 4: the end"},
      {"\x80\x02"
       "cos\nsystem\n.",
       "byte 2: opcode 0x63 may run code, and is refused"},
      {"# no pickle", "byte 0: no pickle begins so; torch.cuda.memory._dump_snapshot() writes one"},
      {"\x80\x02)R.", "byte 3: opcode 0x52"},
      {"\x80\x02X\xff\xff\xff\x7f"
       "ab",
       "byte 2: the pickle ends within this string"},
      {"\x80\x02h\x05.", "byte 2: a value that was not there before"},
      {"\x80\x02Nr\xff\xff\xff\xff.", "byte 3: no value to keep, or a wild number"},
      {"\x80\x02q\x01.", "byte 2: no value to keep"},
      {"\x80\x02Ne.", "byte 3: the end of a list or dictionary that never began"},
      {"\x80\x02}(Nu.", "byte 5: a key without a value"},
      {"\x80\x02N(Ne.", "byte 5: values for a list or dictionary that is not there"},
      {"\x80\x02\x86.", "byte 2: a value for a tuple is missing"},
      {"\x80\x02"
       "a.",
       "byte 2: a value for a list or dictionary is missing"},
      {"\x80\x02\x8a\x0a"
       "aaaaaaaaaa.",
       "byte 2: an integer of more than 64 bits"},
  };
  for (const auto& [bytes, message] : cases) {
    const Result<Pickle> pickle = parse(bytes);
    ASSERT_FALSE(pickle.ok()) << message;
    EXPECT_EQ(pickle.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(pickle.error().message(), StartsWith("p: " + message));
  }
}

TEST(PickleReader, EveryPrefixIsRefused) {
  std::string bytes;
  PickleWriter writer(bytes);
  writer.begin_dict();
  writer.key("a");
  writer.begin_list();
  for (int i = 0; i < 300; ++i) writer.string(std::to_string(i % 20));
  writer.real(0.5);
  writer.unsigned_integer(UINT64_MAX);
  writer.integer(INT64_MIN);
  writer.end_list();
  writer.end_dict();
  writer.finish();
  ASSERT_TRUE(parse(bytes).ok());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse(bytes.substr(0, size)).ok()) << size;
  }
}

TEST(PickleWriter, IsReadBackWhole) {
  std::string bytes;
  PickleWriter writer(bytes);
  writer.begin_list();
  const std::vector<std::int64_t> numbers = {
      0, 255, 256, 65535, 65536, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1 << 31U};
  for (const std::int64_t number : numbers) writer.integer(number);
  for (int i = 0; i < 5000; ++i) {  // several batches, and memos beyond a byte
    writer.shared(static_cast<std::uint32_t>(i % 700), [&] {
      writer.begin_list();
      writer.integer(i % 700);
      writer.end_list();
    });
  }
  writer.end_list();
  writer.finish();
  const Result<Pickle> pickle = parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.error().message();
  const std::span<const PickleValue> values = pickle->root().list();
  ASSERT_EQ(values.size(), numbers.size() + 5000);
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(values[i].integer(), numbers[i]);
  for (std::size_t i = 0; i < 5000; ++i) {
    const PickleValue value = values[numbers.size() + i];
    ASSERT_EQ(value.list().size(), 1U);
    ASSERT_EQ(value.list()[0].integer(), static_cast<std::int64_t>(i % 700));
    ASSERT_EQ(value.identity(), values[numbers.size() + i % 700].identity());
  }
}

TEST(PytorchTrace, RefusesWhatIsNoSnapshotAndSaysSo) {
  for (const std::string& bytes : {"\x80\x02N."s, "\x80\x02}."s,
                                   "\x80\x02}(X\x0d\x00\x00\x00"
                                   "device_traces]u."s,
                                   "\x80\x02}(X\x0d\x00\x00\x00"
                                   "device_tracesNX\x08\x00\x00\x00segments]u."s,
                                   "\x80\x02}(X\x0d\x00\x00\x00"
                                   "device_traces]X\x08\x00\x00\x00segments]u."s}) {
    const Result<Pickle> pickle = parse(bytes);
    ASSERT_TRUE(pickle.ok()) << pickle.error().message();
    const Result<PytorchTrace> trace = pytorch_trace(*pickle, "p", std::nullopt);
    ASSERT_FALSE(trace.ok());
    EXPECT_EQ(trace.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(trace.error().message(), StartsWith("p: "));
  }
}

}  // namespace
}  // namespace weir
