// Tests which parts of the data a fingerprint reads.
#include "checkpoint/data_identity.h"

#include <gtest/gtest.h>

#include "base/field_json.h"

namespace prun::checkpoint {
namespace {

TEST(DataIdentity, SmallDataAreReadWhole) {
  for (const int64_t elements : {0, 1, 65535, 65536, 65537, 64 * 65536}) {
    int64_t end = 0;
    for (const DataBlock& block : blocks_of(elements, 4)) {
      EXPECT_EQ(block.begin, end);
      EXPECT_LE(block.end - block.begin, 65536);
      end = block.end;
    }
    EXPECT_EQ(end, elements);
  }
}

TEST(DataIdentity, LargeDataAreSampledFromTheFirstToTheLastElement) {
  for (const int64_t elements : {int64_t{64} * 65536 + 1, int64_t{1} << 40, INT64_MAX}) {
    const std::vector<DataBlock> blocks = blocks_of(elements, 4);
    ASSERT_EQ(blocks.size(), 64U);
    EXPECT_EQ(blocks.front().begin, 0);
    EXPECT_EQ(blocks.back().end, elements);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].end - blocks[i].begin, 65536);
      if (i > 0) {
        EXPECT_GT(blocks[i].begin, blocks[i - 1].begin);
      }
    }
  }
}

TEST(DataIdentity, IsReadBackFromJson) {
  const DataIdentity identity{"tokens", "epochs", 16, 5, 100, {{"", "u16", 120, {"0123456789abcdef"}}}};
  DataIdentity read;
  read_fields(fields_json(identity), read);
  EXPECT_EQ(read, identity);
  EXPECT_TRUE(read.known());
}

}  // namespace
}  // namespace prun::checkpoint
