// SPDX-License-Identifier: Apache-2.0
// The bytes of a recording are those that allocator/observe/README.md gives: files of earlier
// versions of Weir must stay readable, so that writer and reader may not change together.
#include "observe/recording_format.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::recording_format {
namespace {

// The text of these bytes.
std::string bytes_of(const std::vector<int>& bytes) {
  std::string text;
  for (const int byte : bytes) text += static_cast<char>(byte);
  return text;
}

std::string varint(std::uint64_t value) {
  std::string text;
  put(text, value);
  return text;
}

TEST(RecordingFormat, AFileBeginsWithItsNameAndVersion) {
  EXPECT_EQ(file_header(), bytes_of({0x89, 0x57, 0x45, 0x49, 0x52, 0x0d, 0x0a, 0x1a,  //
                                     1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(kFileHeader, 16u);
}

TEST(RecordingFormat, ABlockBeginsWithItsKindSizesNumberAndSum) {
  const std::string payload = "some bytes";
  const BlockHeader header{
      .kind = BlockKind::events, .stored = 10, .plain = 0x12345, .number = 0x01020304};
  std::string expected = "WBLK" + bytes_of({4, 0, 0, 0, 10, 0, 0, 0, 0x45, 0x23, 1, 0, 4, 3, 2, 1});
  const std::string summed = expected + payload;
  const uLong sum = crc32(crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(summed.data()),
                          static_cast<uInt>(summed.size()));
  for (int byte = 0; byte < 4; ++byte) expected += static_cast<char>(sum >> 8 * byte & 0xff);
  const std::string made = block_header(header, payload);
  EXPECT_EQ(made, expected);
  EXPECT_EQ(made.size(), kBlockHeader);

  const std::optional<BlockHeader> read = parse_block_header(made);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->kind, BlockKind::events);
  EXPECT_EQ(read->stored, 10u);
  EXPECT_EQ(read->plain, 0x12345u);
  EXPECT_EQ(read->number, 0x01020304u);
  EXPECT_EQ(read->crc, sum);
  EXPECT_TRUE(crc_is_right(made, payload));
  EXPECT_FALSE(crc_is_right(made, "some bytez"));
}

TEST(RecordingFormat, AHeaderWithSizesOrAKindThatNoneHasIsNone) {
  const auto is_header = [](BlockHeader header) {
    return parse_block_header(block_header(header, "")).has_value();
  };
  for (int kind = 0; kind < 9; ++kind) {
    EXPECT_EQ(is_header({.kind = static_cast<BlockKind>(kind)}), kind >= 1 && kind <= 6) << kind;
  }
  constexpr std::uint32_t kMost = 4 << 20;
  EXPECT_TRUE(is_header({.stored = kMost, .plain = kMost}));
  EXPECT_FALSE(is_header({.stored = kMost + 1}));
  EXPECT_FALSE(is_header({.plain = kMost + 1}));
  EXPECT_FALSE(parse_block_header(block_header({}, "").substr(0, kBlockHeader - 1)).has_value());
  EXPECT_FALSE(parse_block_header("WBLX" + block_header({}, "").substr(4)).has_value());
}

TEST(RecordingFormat, NumbersHaveSevenBitsAByte) {
  EXPECT_EQ(varint(0), bytes_of({0}));
  EXPECT_EQ(varint(127), bytes_of({0x7f}));
  EXPECT_EQ(varint(128), bytes_of({0x80, 1}));
  EXPECT_EQ(varint(300), bytes_of({0xac, 2}));
  EXPECT_EQ(varint(std::numeric_limits<std::uint64_t>::max()), std::string(9, '\xff') + '\x01');
  for (const std::uint64_t value : {0ULL, 127ULL, 128ULL, 16383ULL, 16384ULL, ~0ULL}) {
    const std::string text = varint(value);
    PayloadReader in(text);
    EXPECT_EQ(in.number(), value);
    EXPECT_TRUE(in.at_end());
    EXPECT_FALSE(in.failed());
  }
  for (const std::string& text : {std::string(), bytes_of({0x81}), std::string(10, '\xff')}) {
    PayloadReader in(text);
    EXPECT_EQ(in.number(), 0u);
    EXPECT_TRUE(in.failed());
    EXPECT_EQ(in.byte(), 0u);
  }
}

TEST(RecordingFormat, ATextIsItsLengthAndItsBytes) {
  std::string out;
  put(out, std::string_view("heap"));
  EXPECT_EQ(out, "\x04heap");
  PayloadReader in(out);
  EXPECT_EQ(in.text(), "heap");
  EXPECT_TRUE(in.at_end());
  PayloadReader cut(std::string_view(out).substr(0, 4));
  EXPECT_EQ(cut.text(), "");
  EXPECT_TRUE(cut.failed());
}

TEST(RecordingFormat, DifferencesAreZigzagCoded) {
  const std::int64_t differences[] = {0, -1, 1, -2, 2};
  for (std::uint64_t code = 0; code < 5; ++code) {
    EXPECT_EQ(zigzag(static_cast<std::uint64_t>(differences[code])), code);
    EXPECT_EQ(unzigzag(code), static_cast<std::uint64_t>(differences[code]));
  }
}

// Each field is a bit of the mask; groups of kinds know what their own had before.
TEST(RecordingFormat, AnEventIsWhatChangedSinceTheLastOfItsGroup) {
  const Event allocate{.kind = EventKind::allocate,
                       .plain = true,
                       .heap = {5},
                       .page = {7},
                       .time = {1000},
                       .stream = 4,
                       .other = 8,
                       .address = {1},
                       .bytes = {2},
                       .requested = {3},
                       .sequence = {9},
                       .duration = {11},
                       .pool = 10,
                       .stack = 6};
  Event fence = allocate;
  fence.kind = EventKind::fence;
  fence.plain = false;
  fence.time = {1128};
  fence.requested = {1};
  fence.duration = {12};
  EventCoder coder;
  std::string out;
  coder.encode(allocate, out);
  // 1 to 11, each as twice that.
  std::string expected =
      bytes_of({0x80, 0xe8, 7, 0xff, 0x0f, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22});
  EXPECT_EQ(out, expected);
  coder.encode(fence, out);
  expected += bytes_of({2, 0x80, 1, 0x84, 8, 3, 2});  // less by two, more by one
  EXPECT_EQ(out, expected);
  // The first of the other groups: all is new.
  const auto expect_first = [&](EventKind first, EventKind second) {
    coder.encode({.kind = first, .time = {1128}, .address = {1}}, out);
    coder.encode({.kind = second, .time = {1128}, .address = {1}}, out);
    expected += bytes_of({static_cast<int>(first), 0, 1, 2, static_cast<int>(second), 0, 0});
    EXPECT_EQ(out, expected);
  };
  expect_first(EventKind::create, EventKind::unlease);
  expect_first(EventKind::stream_wait, EventKind::trim);

  EventCoder decoder;
  PayloadReader in(out);
  const std::optional<Event> first = decoder.decode(in), second = decoder.decode(in);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->plain);
  EXPECT_EQ(fields_of(*first), fields_of(allocate));
  EXPECT_EQ(first->time, allocate.time);
  EXPECT_EQ(fields_of(*second), fields_of(fence));
  EXPECT_EQ(second->time, fence.time);
}

TEST(RecordingFormat, ImpossibleEventsFail) {
  const auto is_event = [](const std::string& bytes) {
    PayloadReader in(bytes);
    return EventCoder().decode(in).has_value();
  };
  const std::string most32 = varint(zigzag(0xffff'ffff)), more32 = varint(zigzag(0x1'0000'0000));
  const std::string latest = varint(std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(is_event(bytes_of({kEventKinds, 0, 0}))) << "a later version's";
  EXPECT_TRUE(is_event(bytes_of({0}) + latest + bytes_of({0})));
  EXPECT_FALSE(is_event(bytes_of({0}) + varint(std::uint64_t{1} << 63) + bytes_of({0})));
  EXPECT_FALSE(is_event(bytes_of({0, 0, 0x80, 0x10})));  // a twelfth field
  for (const int field : {4, 5, 6}) {                    // heap, stack, page
    EXPECT_TRUE(is_event(bytes_of({0, 0, 1 << field}) + most32)) << field;
    EXPECT_FALSE(is_event(bytes_of({0, 0, 1 << field}) + more32)) << field;
  }
  EXPECT_FALSE(is_event(bytes_of({0, 0, 1})));  // and no value
  EXPECT_FALSE(is_event(bytes_of({0, 0})));
  // A time that two events together are past.
  EventCoder coder;
  const std::string two = bytes_of({0}) + latest + bytes_of({0, 0, 1, 0});
  PayloadReader in(two);
  EXPECT_TRUE(coder.decode(in).has_value());
  EXPECT_FALSE(coder.decode(in).has_value());
}

TEST(RecordingFormat, WhatInflatesToAnotherSizeIsNothing) {
  const std::string plain(1000, 'x');
  const std::string stored = deflated(plain);
  EXPECT_LT(stored.size(), 100u);
  EXPECT_EQ(inflated(stored, plain.size()), plain);
  EXPECT_EQ(inflated(stored, plain.size() - 1), std::nullopt);
  EXPECT_EQ(inflated(stored, plain.size() + 1), std::nullopt);
  EXPECT_EQ(inflated("nothing of zlib's", 10), std::nullopt);
}

}  // namespace
}  // namespace weir::recording_format
