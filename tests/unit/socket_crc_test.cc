// CRC32C against its published check values, and its implementations (tables, instruction, folding) against each other
// at every length.
#include <gtest/gtest.h>

#include <vector>

#include "plugins/socket/crc.h"

namespace {

using prun::socket::crc32c;
using prun::socket::crc32c_every_way;

TEST(SocketCrc, HasThePublishedValues) {  // RFC 3720 appendix B.4, and the CRC catalogue's check value
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(0, std::vector<char>(32, 0).data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, std::vector<char>(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(SocketCrc, AllWaysAgreeAtEveryLengthAndContinue) {
  std::vector<unsigned char> data(70000);
  uint32_t state = 1;
  for (unsigned char& byte : data) byte = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24);
  for (size_t length = 0; length < data.size(); length += length < 5000 ? 1 : 997) {
    const unsigned char* from = data.data() + length % 13 % (data.size() - length);
    const std::vector<uint32_t> all = crc32c_every_way(17, from, length);
    for (const uint32_t each : all) ASSERT_EQ(each, all.front()) << length;
    const size_t cut = length / 3;
    ASSERT_EQ(crc32c(crc32c(17, from, cut), from + cut, length - cut), all.front()) << length;
  }
}

}  // namespace
