// CRC32C (Castagnoli, RFC 3720 appendix B.4) of headers and of payloads that cross TCP.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace prun::socket {

// Continues `crc` (0 to start) over `bytes` bytes: crc32c(crc32c(0, a), b) is the checksum of a followed by b.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

// Returns the checksum by each implementation that this processor supports, for the test that they agree.
std::vector<uint32_t> crc32c_every_way(uint32_t crc, const void* data, size_t bytes);

}  // namespace prun::socket
