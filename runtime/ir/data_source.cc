#include "ir/data_source.h"

#include <cstddef>
#include <numeric>

namespace prun {

std::string DataSource::words() const { return order == "epochs" ? kind + " in epochs" : kind; }

std::string DataSource::path() const { return files.empty() ? "" : files.front().path; }

int64_t DataSource::file_bytes() const {
  int64_t bytes = 0;
  for (const DataFile& file : files) bytes += file.bytes;
  return bytes;
}

int64_t WholeSet::batches() const {
  if (left() == 0) return full();
  return full() + (batch % left() == 0 ? 1 : 2);
}

int64_t WholeSet::sample(int64_t batch_index, int64_t slot) const {
  const int64_t first = full() * batch;  // the first remaining sample
  if (batch_index < full()) return batch_index * batch + slot;
  if (left() == 0) return 0;  // the prefetching thread reads one batch too many
  return batch_index == full() && slot < copies() * left() ? first + slot % left() : first;
}

// Weights are relative to a full batch. The batch with copies counts each remaining sample `copies` times, and the
// first one once more per remaining slot.
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
