// Rings that go round alike share bytes: frame i holds place i of each of them.
//
// What lies in a frame, and when, is the same for every frame, a microbatch later. So the listed microbatches show all
// neighbours that the others have, wherever a repeat has taken them. A buffer that waits for its turn, until the
// microbatch whose place it takes is done, leaves its bytes to those that live meanwhile.
#pragma once
#include <cstdint>
#include <vector>

#include "compile/buffer_lives.h"

namespace prun {

// A ring of a body's repeat, and when the buffers in it live.
struct RingLives {
  int ring = 0;
  int64_t bytes = 0;  // of a buffer
  int slots = 1;      // the fewest places that it can have
  int first = 0;      // microbatch
  int members = 0;
  std::vector<const Life*> lives;  // from the first microbatch on; null where one has none
};

struct Frames {
  // Microbatch m has its place in frame (m + shift) % slots, so many bytes from where that begins.
  struct Part {
    const RingLives* ring;
    int shift = 0;
    int64_t at = 0;
  };
  int slots = 0;
  int64_t bytes = 0;  // of a frame
  std::vector<Part> parts;
  int64_t all_bytes() const { return slots * bytes; }
};

// Frames for the `wide` rings, which are one to others, in no more bytes than one behind the other; and in them those
// of the `narrow` that fit without making them larger. Throws DoesNotRecur.
std::vector<Frames> framed(const BufferLives& lives, std::vector<const RingLives*> wide,
                           std::vector<const RingLives*> narrow);

}  // namespace prun
