// Counts the heap allocations of this process and the bytes that it retains: allocation_counter.cc replaces malloc in
// the test program that links it. Sanitizers replace malloc themselves, so nothing is counted under them.
#pragma once
#include <cstddef>

namespace prun::test {

struct Allocations {
  long count = 0;
  size_t largest = 0;
  long kept = 0;  // bytes allocated minus bytes freed
};
void start_counting_allocations();
Allocations stop_counting_allocations();
bool allocations_are_counted();

}  // namespace prun::test
