// Counts the heap allocations of this process, and what is kept of them: allocation_counter.cc replaces malloc for the
// test program that it is linked into. Under a sanitizer, which owns malloc itself, nothing is counted.
#pragma once
#include <cstddef>

namespace prun::test {

struct Allocations {
  long count = 0;
  size_t largest = 0;
  long kept = 0;  // bytes: what was allocated less what was freed
};
void start_counting_allocations();
Allocations stop_counting_allocations();
bool allocations_are_counted();

}  // namespace prun::test
