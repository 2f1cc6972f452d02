// Faults in a body's repeat: its count, its ops, the ring slots of its microbatches.
#include <fmt/format.h>

#include "mutant.h"

namespace prun::mutate {
namespace {

size_t below(std::mt19937_64& random, size_t n) { return static_cast<size_t>(random() % n); }

// Moves the members, too: the fault is in their offsets, not in their consistency with the repeat.
void place(Program& program, Repeat& repeat) {
  for (const Repeat::Member& member : repeat.members) {
    const Repeat::Ring& ring = repeat.rings[static_cast<size_t>(member.ring)];
    Buffer& buffer = program.buffers[member.buffer];
    buffer.offset = ring.offset + ring.place(member.microbatch) * ring.bytes;
    if (ring.pool >= 0) buffer.slot = ring.place(member.microbatch);
  }
}

}  // namespace

bool repeat(Job& job, std::mt19937_64& random, Mutant& mutant) {
  Program& program = job.classes[below(random, job.classes.size())];
  Body& body = program.bodies[static_cast<int>(below(random, program.bodies.size()))];
  Repeat& repeat = body.repeat;
  if (!repeat.any()) return false;
  switch (random() % 8) {
    case 0: {
      const bool more = random() % 2 == 0;
      mutant.what = more ? "repeats once more" : "repeats once less";
      repeat.times += more ? 1 : -1;
      return true;
    }
    case 1: {
      mutant.what = "counts microbatches of a period wrongly";
      repeat.microbatches += random() % 2 == 0 || repeat.microbatches == 1 ? 1 : -1;
      return true;
    }
    case 2: {
      const StreamId stream = static_cast<int>(below(random, repeat.ops.size()));
      Repeat::Span& ops = repeat.ops[stream];
      if (ops.count == 0) return false;
      mutant.what = fmt::format("repeats other ops of {}", body.streams[stream].name);
      (random() % 2 == 0 ? ops.first : ops.count) += random() % 2 == 0 ? 1 : -1;
      return true;
    }
    case 3:
    case 4: {
      Repeat::Ring& ring = repeat.rings[below(random, repeat.rings.size())];
      if (ring.slots < 2 || ring.pool >= 0) return false;
      if (random() % 2 == 0) {
        ring.start += 1;
        mutant.what = "begins to go round with another place";
      } else {
        ring.slots -= 1;
        mutant.what = fmt::format("has {} places for {} microbatches", ring.slots, ring.slots + 1);
      }
      place(program, repeat);
      return true;
    }
    case 5: {
      Repeat::Ring& ring = repeat.rings[below(random, repeat.rings.size())];
      Repeat::Ring& other = repeat.rings[below(random, repeat.rings.size())];
      if (&ring == &other || ring.pool >= 0 || other.pool >= 0) return false;
      mutant.what = "places two rings where one is";
      ring.offset = other.offset;
      place(program, repeat);
      return true;
    }
    case 6: {
      if (repeat.slides.empty()) return false;
      Repeat::Slide& slide = repeat.slides[below(random, repeat.slides.size())];
      mutant.what = fmt::format("moves {} by other bytes", program.tensors[slide.tensor].name);
      slide.bytes = random() % 2 == 0 ? 0 : slide.bytes / 2;
      return true;
    }
    default: {
      if (repeat.growths.empty()) return false;
      Repeat::Growth& growth = repeat.growths[below(random, repeat.growths.size())];
      mutant.what = fmt::format("lets '{}' grow by {}", growth.attr, growth.by + 1);
      growth.by += 1;
      return true;
    }
  }
}

}  // namespace prun::mutate
