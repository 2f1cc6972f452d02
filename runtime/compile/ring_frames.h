// Ring buffers that rotate alike share bytes: frame i holds slot i of each of them.
//
//   frame 0     frame 1     frame 2
//   [A0 B0]     [A1 B1]     [A2 B2]     microbatch m of a ring: frame (m + shift) % slots
//
// All frames have the same contents at the same times, one microbatch apart. The listed microbatches therefore show all
// neighbors that the others have, wherever a repeat moves them. Between two microbatches, other rings use a slot's
// bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "compile/buffer_lives.h"

namespace prun {

// A ring buffer of a body's repeat, and the live ranges of its buffers.
struct RingLives {
  int ring = 0;
  int64_t bytes = 0;  // per buffer
  int slots = 1;      // minimum number of slots
  int first = 0;      // first microbatch
  int members = 0;
  std::vector<const Life*> lives;  // by microbatch, from `first`; null = no buffer
};

struct Frames {
  // Microbatch m is in frame (m + shift) % slots, `at` bytes from its begin.
  struct Part {
    const RingLives* ring;
    int shift = 0;
    int64_t at = 0;
  };
  int slots = 0;
  int64_t bytes = 0;  // per frame
  std::vector<Part> parts;
  int64_t all_bytes() const { return slots * bytes; }
};

// Returns frames for the `wide` rings (Repeat::Ring::is_one_to_others), which take at most the bytes of separate
// frames, and adds those `narrow` rings that fit without enlarging them. Throws DoesNotRecur.
std::vector<Frames> framed(const BufferLives& lives, std::vector<const RingLives*> wide,
                           std::vector<const RingLives*> narrow);

}  // namespace prun
