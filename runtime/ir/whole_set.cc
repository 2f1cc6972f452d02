#include "ir/whole_set.h"

#include <cstddef>
#include <numeric>

namespace prun {

int64_t WholeSet::batches() const {
  if (left() == 0) return full();
  return full() + (batch % left() == 0 ? 1 : 2);
}

int64_t WholeSet::sample(int64_t batch_index, int64_t slot) const {
  const int64_t first = full() * batch;  // of those that are left
  if (batch_index < full()) return batch_index * batch + slot;
  if (left() == 0) return 0;  // a thread reads ahead
  return batch_index == full() && slot < copies() * left() ? first + slot % left() : first;
}

// In units of full batches: the batch with copies has the sum of what is left `copies` times, and the others' slots.
double WholeSet::weight(int64_t batch_index) const {
  if (batch_index < full()) return 1;
  if (batch_index == full()) return 1 / static_cast<double>(copies());
  return -static_cast<double>(batch % left()) / static_cast<double>(batch) / static_cast<double>(copies());
}

double WholeSet::mean(const std::vector<double>& batch_means) const {
  double sum = 0;
  for (size_t i = 0; i < batch_means.size(); ++i) sum += weight(static_cast<int64_t>(i)) * batch_means[i];
  return sum / (static_cast<double>(samples) / static_cast<double>(batch));
}

double evaluation_loss(const DataSource& source, const std::vector<double>& batch_means) {
  if (source.whole > 0) return WholeSet{source.whole, source.global_batch}.mean(batch_means);
  return std::accumulate(batch_means.begin(), batch_means.end(), 0.0) / static_cast<double>(batch_means.size());
}

}  // namespace prun
