// Frame format of an authenticated connection: a header of 48 bytes, then `length` bytes of payload.
//
// Both ends are little-endian with IEEE floats (the hello rejects others), so headers are sent in memory layout.
#pragma once
#include <cstddef>
#include <cstdint>

#include "crc.h"

namespace prun::socket {

enum class FrameKind : uint8_t {
  eager = 1,     // a whole small message
  data = 2,      // a piece of a large message at `offset`; its receive is posted, or the peer is far away (ahead.cc)
  posted = 3,    // from a receiver: the receive `sequence` of `total` bytes is posted, so the sender may send
  announce = 4,  // from a sender that waits for `posted`: `sequence` has `total` bytes, so mismatches are detected
  credit = 5,    // carries `credit` only
  filler = 7,    // a meaningless payload (TlsStream::kFiller)
  goodbye = 6,   // the last frame; `total` is a Goodbye, `culprit` the rank that the sender blames
};

enum class Goodbye : uint64_t { closed = 0, failed = 1, corrupt = 2 };

inline constexpr uint8_t kPayloadHasCrc = 1;  // a bit of FrameHeader::flags

struct FrameHeader {
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint16_t lane = 0;
  uint32_t number = 0;    // counts frames of this connection, so that a lost or repeated frame is detected
  uint32_t sequence = 0;  // number of the message on its lane, counted per direction; wraps
  uint32_t credit = 0;    // eager bytes of this lane that the frame's sender has consumed so far; wraps
  uint64_t total = 0;     // bytes of the whole message
  uint64_t offset = 0;
  uint32_t length = 0;  // bytes of the payload that follows
  uint32_t payload_crc = 0;
  int32_t culprit = -1;
  uint32_t header_crc = 0;  // CRC of the preceding 44 bytes

  uint32_t expected_crc() const { return crc32c(0, this, offsetof(FrameHeader, header_crc)); }
};
static_assert(sizeof(FrameHeader) == 48, "headers travel as they lie in memory");

// Returns whether a precedes b in sequence numbers that wrap.
inline bool sequence_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace prun::socket
