// What goes over an authenticated connection: a header of 48 bytes, then `length` bytes of payload.
//
// Both ends are little-endian with IEEE floats (the hello refuses others), so headers travel as they lie in memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "crc.h"

namespace prun::socket {

enum class FrameKind : uint8_t {
  eager = 1,     // a whole small message
  data = 2,      // a piece of a large message, at `offset`: the receiver has asked for it, or is far away (ahead.cc)
  posted = 3,    // from a receiver: I have posted the receive `sequence`, of `total` bytes: send
  announce = 4,  // from a sender whose message nobody asked for: `sequence` has `total` bytes. Only finds mismatches.
  credit = 5,    // `credit` alone
  filler = 7,    // a payload that means nothing (TlsStream::kFiller)
  goodbye = 6,   // the last frame; `total` is a Goodbye, `culprit` whom the sender blames
};

enum class Goodbye : uint64_t { closed = 0, failed = 1, corrupt = 2 };

inline constexpr uint8_t kPayloadHasCrc = 1;  // in flags

struct FrameHeader {
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint16_t lane = 0;
  uint32_t number = 0;    // of the frame on this connection, so that a lost or repeated one is noticed
  uint32_t sequence = 0;  // of the message on its lane, each direction counts by itself; wraps
  uint32_t credit = 0;    // eager bytes of this lane that the sender of the frame has consumed so far; wraps
  uint64_t total = 0;     // bytes of the whole message
  uint64_t offset = 0;
  uint32_t length = 0;  // of the payload that follows
  uint32_t payload_crc = 0;
  int32_t culprit = -1;
  uint32_t header_crc = 0;  // of the 44 bytes before

  uint32_t expected_crc() const { return crc32c(0, this, offsetof(FrameHeader, header_crc)); }
};
static_assert(sizeof(FrameHeader) == 48, "headers travel as they lie in memory");

// a before b, where both wrap.
inline bool sequence_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace prun::socket
