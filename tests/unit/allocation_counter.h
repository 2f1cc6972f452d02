// Counts the heap allocations of this process: allocation_counter.cc replaces malloc for the test program that it is
// linked into. Under a sanitizer, which owns malloc itself, nothing is counted.
#pragma once
#include <cstddef>

namespace prun::test {

struct Allocations {
  long count = 0;
  size_t largest = 0;
};
void start_counting_allocations();
Allocations stop_counting_allocations();
bool allocations_are_counted();

}  // namespace prun::test
