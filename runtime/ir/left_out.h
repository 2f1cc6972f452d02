// Batches that no step takes, as a number in them was not finite: step s takes the s-th of the others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

struct LeftOut {
  std::vector<int64_t> runs;  // of batches from 0: where each begins, and where it has ended; ascending and apart

  int64_t batch_of(int64_t step) const;
  void add(int64_t begin, int64_t end);  // may overlap with others
  bool valid() const;
};

// "batches 11-17", counted from 1 as people count.
std::string batches_text(int64_t begin, int64_t end);

}  // namespace prun
