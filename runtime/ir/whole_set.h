// Batches of an evaluation that takes each sample of its set once, although all batches have one size.
//
//   a set of 10 samples, batches of 4:   0 1 2 3 | 4 5 6 7 | 8 9 8 9
//   a set of 11 samples, batches of 4:   0 1 2 3 | 4 5 6 7 | 8 9 10 8 | 8 8 8 8
//
// The last samples fill a batch with equally many copies of each. If that batch has slots left, they hold the first of
// these samples, and one more batch holds that sample alone, so that its loss can be subtracted. The mean of the set is
// therefore a weighted sum of the means of batches, and no kernel needs a mask.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/data_source.h"

namespace prun {

struct WholeSet {
  int64_t samples = 0, batch = 1;  // both at least 1

  int64_t batches() const;
  int64_t sample(int64_t batch_index, int64_t slot) const;
  double weight(int64_t batch_index) const;  // weight of a batch's mean, relative to a full batch
  double mean(const std::vector<double>& batch_means) const;

 private:
  int64_t full() const { return samples / batch; }  // batches without copies
  int64_t left() const { return samples % batch; }
  int64_t copies() const { return batch / left(); }  // copies of each remaining sample
};

// Returns the loss of an evaluation on `source` from the losses of its batches, in order.
double evaluation_loss(const DataSource& source, const std::vector<double>& batch_means);

}  // namespace prun
