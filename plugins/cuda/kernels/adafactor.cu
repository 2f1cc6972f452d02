// factor_means, factor_norms and adafactor: the formulas of torch.optim.Adafactor (Shazeer and Stern, Adafactor, 2018).
// A rank's part of a parameter may begin and end within a row.
//
// Gradients are read twice for their means, once by rows and once by columns, so that blocks share no sums and results
// are bitwise identical in every run.
#include <algorithm>
#include <cfloat>

#include "block.cuh"
#include "cuda/device/context.h"
#include "launch.h"
#include "prun/sdk/factored_updates.h"
#include "update_operands.h"

namespace prun::cuda {
namespace {

using sdk::FactoredParameter;

constexpr int kThreads = 256, kPartialSums = 1024;
constexpr int kChunkRows = 8, kChunkColumns = 32;    // threads of a block that sums columns
constexpr int kColumnBlocks = 512, kLeastRows = 64;  // enough blocks for a GPU, and rows that keep a block busy

// A parameter's elements [begin, end), which the rank has. `grad` and `clip` may be read by all kernels.
struct Part {
  int64_t leads, rows, columns, begin, end;
  const float* grad;  // of element `begin`
  const float* clip;
  __device__ float gradient(int64_t element) const { return grad[element - begin] * (clip != nullptr ? *clip : 1.0f); }
  __host__ __device__ int64_t first_row() const { return begin / columns; }
  __host__ __device__ int64_t end_row() const { return (end - 1) / columns + 1; }
};

__device__ bool skips(const float* clip) { return clip != nullptr && *clip < 0; }

__global__ void clear_vector(float* to, int64_t n) {
  for (int64_t i = first_item(); i < n; i += item_stride()) to[i] = 0;
}

__global__ void means_of_rows(Part part, float* rows, double share) {
  for (int64_t row = part.first_row() + blockIdx.x; row < part.end_row(); row += gridDim.x) {
    const int64_t begin = max(row * part.columns, part.begin), end = min((row + 1) * part.columns, part.end);
    double sum = 0;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
      const float g = part.gradient(e);
      sum += static_cast<double>(g) * g;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) rows[row] = static_cast<float>(sum * share);
  }
}

// Sums a slice of the rows of each matrix: block (x, y) has a chunk of a matrix's columns and slice y of its rows.
// `slices` has the columns of all matrices once for each slice.
__global__ void sum_columns(Part part, int64_t rows_of_slice, double* slices) {
  __shared__ double sums[kChunkRows][kChunkColumns];
  const int64_t chunks = (part.columns + kChunkColumns - 1) / kChunkColumns;
  const int x = threadIdx.x % kChunkColumns, y = threadIdx.x / kChunkColumns;
  for (int64_t i = blockIdx.x; i < part.leads * chunks; i += gridDim.x) {
    const int64_t lead = i / chunks, column = i % chunks * kChunkColumns + x;
    const int64_t begin = lead * part.rows + blockIdx.y * rows_of_slice;
    const int64_t first = max(begin, part.first_row()),
                  last = min(min(begin + rows_of_slice, (lead + 1) * part.rows), part.end_row());
    double sum = 0;
    for (int64_t row = first + y; column < part.columns && row < last; row += kChunkRows) {
      const int64_t e = row * part.columns + column;
      if (e < part.begin || e >= part.end) continue;
      const float g = part.gradient(e);
      sum += static_cast<double>(g) * g;
    }
    sums[y][x] = sum;
    __syncthreads();
    if (y == 0 && column < part.columns) {
      double all = 0;
      for (int r = 0; r < kChunkRows; ++r) all += sums[r][x];
      slices[(blockIdx.y * part.leads + lead) * part.columns + column] = all;
    }
    __syncthreads();
  }
}

__global__ void means_of_columns(const double* slices, int count, int64_t columns, double share, float* means) {
  for (int64_t i = first_item(); i < columns; i += item_stride()) {
    double sum = 0;
    for (int s = 0; s < count; ++s) sum += slices[s * columns + i];
    means[i] = static_cast<float>(sum * share);
  }
}

__global__ void follow_means(float* average, const float* mean, int64_t n, double beta2_decay, const float* clip,
                             const prun_step_values* values) {
  if (skips(clip)) return;
  const auto share = static_cast<float>(pow(static_cast<double>(values->update + 1), beta2_decay));
  for (int64_t i = first_item(); i < n; i += item_stride()) average[i] += share * (mean[i] - average[i]);
}

// Computes 1 / max(mean, eps1) of each matrix's averages, `count` a matrix.
__global__ void factors_of_matrices(const float* averages, int64_t count, double whole, double eps1, float* factors) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += averages[blockIdx.x * count + i];
  sum = block_sum(sum);
  const double mean = sum / whole;
  if (threadIdx.x == 0) factors[blockIdx.x] = static_cast<float>(1 / (mean < eps1 ? eps1 : mean));  // NaNs propagate
}

// The averages of one parameter. `rows` is null for a vector.
struct Averages {
  const float *rows, *columns, *factors;
  float least;
  __device__ float update(const Part& part, int64_t element) const {
    int64_t row, column, lead;
    if (part.end <= UINT32_MAX) {  // divisions of 64 bits take several times as long
      row = static_cast<uint32_t>(element) / static_cast<uint32_t>(part.columns);
      lead = static_cast<uint32_t>(row) / static_cast<uint32_t>(part.rows);
    } else {
      row = element / part.columns, lead = row / part.rows;
    }
    column = element - row * part.columns;
    const float of_column = columns[lead * part.columns + column];
    const float square = rows != nullptr ? rows[row] * factors[lead] * of_column : of_column;
    return part.gradient(element) / sqrtf(square < least ? least : square);  // NaNs propagate
  }
};

template <class T>
__global__ void sum_norms(Part part, Averages averages, const T* param, double* partial) {
  double update = 0, parameter = 0;
  for (int64_t i = first_item(); i < part.end - part.begin && !skips(part.clip); i += item_stride()) {
    const double u = averages.update(part, part.begin + i), p = widen(param[i]);
    update += u * u, parameter += p * p;
  }
  update = block_sum(update);
  parameter = block_sum(parameter);
  if (threadIdx.x == 0) partial[2 * blockIdx.x] = update, partial[2 * blockIdx.x + 1] = parameter;
}

__global__ void __launch_bounds__(kThreads) add_norms(const double* partial, int blocks, float* norms) {
  double sums[2] = {};
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kThreads)
    sums[0] += partial[2 * b], sums[1] += partial[2 * b + 1];
  block_reduce(sums, 0.0, Add{});
  if (threadIdx.x == 0) norms[0] = static_cast<float>(sums[0]), norms[1] = static_cast<float>(sums[1]);
}

struct Settings {
  double beta2_decay, eps2, d, count, lr_factor, weight_decay;
};

// The factors of an update, computed once: powers and roots of f64 in every thread would take longer than the update.
struct Rates {
  float of_update, decay;
};
__global__ void compute_rates(const float* norms, Settings s, const prun_step_values* values, Rates* rates) {
  const double lr = values->learning_rate * s.lr_factor;
  const sdk::FactoredStep step = sdk::factored_step(static_cast<double>(values->update + 1), lr, s.beta2_decay);
  const double rate = sdk::factored_rate(step, norms[0], norms[1], s.count, s.eps2, s.d);
  *rates = {static_cast<float>(rate), static_cast<float>(lr * s.weight_decay)};
}

template <class T>
__global__ void apply(Part part, Averages averages, T* param, const Rates* rates) {
  if (skips(part.clip)) return;
  const float rate = rates->of_update, decay = rates->decay;
  for (int64_t i = first_item(); i < part.end - part.begin; i += item_stride()) {
    const float p = widen(param[i]);
    param[i] = narrow<T>(p - (decay * p + rate * averages.update(part, part.begin + i)));
  }
}

// One parameter of which the rank has elements; `at`: the place of the first in the vector of parameters.
struct Listed {
  FactoredParameter one;
  Part part;
  int64_t at;
};

std::vector<Listed> listed_parameters(const OpView& view) {
  const int64_t n = view.read(0).count(), offset = view.share("axis").index * view.integer("shard");
  view.expect_count(view.read(1), n);
  const float* grad = view.in<float>(0);
  const float* clip = view.integer("clipped") != 0 ? view.in<float>(view.reads() - 1) : nullptr;
  std::vector<Listed> all;
  for (const FactoredParameter& one : sdk::factored_parameters(view)) {
    const sdk::FactoredRange range = sdk::range_in_shard(one, offset, n);
    all.push_back({one, {one.leads, one.rows, one.columns, range.begin, range.end, grad + range.at, clip}, range.at});
  }
  return all;
}

template <class T>
std::vector<T*> vectors_of(const OpView& view, size_t first, size_t count) {
  std::vector<T*> all;
  for (size_t i = first; i < first + count; ++i) {
    if constexpr (std::is_const_v<T>)
      all.push_back(view.in<std::remove_const_t<T>>(i));
    else
      all.push_back(view.out<T>(i));
  }
  return all;
}

// The slices of rows whose columns are summed apart.
struct Slices {
  int64_t rows, count;
  explicit Slices(const FactoredParameter& one) {
    const int64_t chunks = one.leads * ((one.columns + kChunkColumns - 1) / kChunkColumns);
    const int64_t most = std::max<int64_t>(1, std::min(kColumnBlocks / chunks, one.rows / kLeastRows));
    rows = (one.rows + most - 1) / most;
    count = (one.rows + rows - 1) / rows;
  }
};

size_t workspace_of_means(const OpView& view) {
  int64_t most = 0;
  for (const FactoredParameter& one : sdk::factored_parameters(view))
    most = std::max(most, Slices(one).count * one.leads * one.columns);
  return most * sizeof(double);
}

std::unique_ptr<Kernel> make_means(const OpView& view) {
  std::vector<int64_t> counts;
  for (size_t w = 0; w < view.writes(); ++w) counts.push_back(view.write(w).count());
  return kernel_of([all = listed_parameters(view), means = vectors_of<float>(view, 0, counts.size()), counts,
                    scratch = scratch(view, workspace_of_means(view))](cudaStream_t stream) {
    for (size_t w = 0; w < means.size(); ++w)
      launch(clear_vector, blocks_for(counts[w], kThreads), kThreads, 0, stream, means[w], counts[w]);
    for (const auto& [one, part, at] : all) {
      if (part.begin == part.end) continue;
      if (one.is_matrix())
        launch(means_of_rows, blocks_for(part.end_row() - part.first_row(), 1), kThreads, 0, stream, part,
               means[one.row_in] + one.row_at, 1 / static_cast<double>(one.whole_columns));
      const Slices slices(one);
      const int64_t chunks = (one.columns + kChunkColumns - 1) / kChunkColumns, columns = one.leads * one.columns;
      auto* sums = static_cast<double*>(scratch.data);
      launch(sum_columns, dim3(blocks_for(one.leads * chunks, 1), static_cast<unsigned>(slices.count)), kThreads, 0,
             stream, part, slices.rows, sums);
      launch(means_of_columns, blocks_for(columns, kThreads), kThreads, 0, stream, sums, static_cast<int>(slices.count),
             columns, one.is_matrix() ? 1 / static_cast<double>(one.whole_rows) : 1.0,
             means[one.column_in] + one.column_at);
    }
  });
}

// Scratch of one parameter at a time: partial sums of norms, the rates, then the factors of its matrices.
constexpr size_t kPartialBytes = 2 * kPartialSums * sizeof(double);
size_t workspace_of(const OpView& view) {
  int64_t leads = 0;
  for (const FactoredParameter& one : sdk::factored_parameters(view)) leads = std::max(leads, one.leads);
  return kPartialBytes + sizeof(Rates) + leads * sizeof(float);
}

// Launches the sums that the averages of a parameter need.
Averages averages_of(const FactoredParameter& one, const float* rows, const float* columns, double eps1,
                     const Scratch& scratch, cudaStream_t stream) {
  auto* factors = reinterpret_cast<float*>(static_cast<char*>(scratch.data) + kPartialBytes + sizeof(Rates));
  const Averages averages{rows, columns, factors, std::max(FLT_MIN, static_cast<float>(eps1 * eps1))};
  if (rows == nullptr) return averages;
  const bool by_rows = one.has_all_rows();
  launch(factors_of_matrices, static_cast<unsigned>(one.leads), kThreads, 0, stream, by_rows ? rows : columns,
         by_rows ? one.rows : one.columns, static_cast<double>(by_rows ? one.whole_rows : one.whole_columns), eps1,
         factors);
  return averages;
}

template <class Vectors>
auto rows_of(const Vectors& vectors, const FactoredParameter& one) {
  return one.is_matrix() ? vectors[one.row_in] + one.row_at : nullptr;
}

template <class T>
std::unique_ptr<Kernel> make_norms_of(const OpView& view) {
  const auto [mean_count, norm_count] = sdk::factored_operands(sdk::factored_parameters(view));
  const int64_t operands = mean_count;
  std::vector<int64_t> counts;
  for (size_t w = 0; w < view.writes(); ++w) counts.push_back(view.write(w).count());
  const auto averages = vectors_of<float>(view, 0, mean_count), norms = vectors_of<float>(view, mean_count, norm_count);
  for (int64_t v = 0; v < operands; ++v)
    view.expect(view.read(2 + operands + v).ptr == view.write(v).ptr, "it updates in place");
  return kernel_of([all = listed_parameters(view), averages, norms, counts,
                    means = vectors_of<const float>(view, 2, mean_count), param = view.in<T>(1),
                    scratch = scratch(view, workspace_of(view)), values = view.values(), eps1 = view.number("eps1"),
                    clip = view.integer("clipped") != 0 ? view.in<float>(view.reads() - 1) : nullptr,
                    beta2_decay = view.number("beta2_decay")](cudaStream_t stream) {
    for (size_t v = 0; v < means.size(); ++v)
      launch(follow_means, blocks_for(counts[v], kThreads), kThreads, 0, stream, averages[v], means[v], counts[v],
             beta2_decay, clip, values);
    for (size_t w = 0; w < norms.size(); ++w)
      launch(clear_vector, blocks_for(counts[means.size() + w], kThreads), kThreads, 0, stream, norms[w],
             counts[means.size() + w]);
    for (const auto& [one, part, at] : all) {
      if (part.begin == part.end) continue;
      const Averages of =
          averages_of(one, rows_of(averages, one), averages[one.column_in] + one.column_at, eps1, scratch, stream);
      const unsigned blocks = blocks_for(part.end - part.begin, kThreads, kPartialSums);
      auto* partial = static_cast<double*>(scratch.data);
      launch(sum_norms<T>, blocks, kThreads, 0, stream, part, of, param + at, partial);
      launch(add_norms, 1, kThreads, 0, stream, partial, static_cast<int>(blocks), norms[one.norm_in] + one.norm_at);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> make_adafactor_of(const OpView& view) {
  const auto [mean_count, norm_count] = sdk::factored_operands(sdk::factored_parameters(view));
  view.expect(view.read(1).ptr == view.write(0).ptr, "it updates in place");
  const Settings common{view.number("beta2_decay"), view.number("eps2"), view.number("d"), 1, 1, 0};
  return kernel_of([all = listed_parameters(view), averages = vectors_of<const float>(view, 2, mean_count),
                    norms = vectors_of<const float>(view, 2 + mean_count, norm_count), param = view.out<T>(0),
                    scratch = scratch(view, workspace_of(view)), values = view.values(), eps1 = view.number("eps1"),
                    ranges = update_ranges_of(view, view.read(1).count(), 0), common](cudaStream_t stream) {
    for (const auto& [one, part, at] : all) {
      if (part.begin == part.end) continue;
      const Averages of =
          averages_of(one, rows_of(averages, one), averages[one.column_in] + one.column_at, eps1, scratch, stream);
      Settings s = common;
      for (const sdk::UpdateRange& range : ranges)
        if (range.begin <= at && at < range.end) s.lr_factor = range.lr_factor, s.weight_decay = range.weight_decay;
      s.count = static_cast<double>(one.whole_count);
      auto* rates = reinterpret_cast<Rates*>(static_cast<char*>(scratch.data) + kPartialBytes);
      launch(compute_rates, 1, 1, 0, stream, norms[one.norm_in] + one.norm_at, s, values, rates);
      launch(apply<T>, blocks_for(part.end - part.begin, kThreads), kThreads, 0, stream, part, of, param + at, rates);
    }
  });
}

std::unique_ptr<Kernel> make_norms(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_norms_of<T>(view); });
}
std::unique_ptr<Kernel> make_adafactor(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_adafactor_of<T>(view); });
}

const KernelFamily kFamily = {{"factor_means", make_means, workspace_of_means},
                              {"factor_norms", make_norms, workspace_of},
                              {"adafactor", make_adafactor, workspace_of}};

}  // namespace
}  // namespace prun::cuda
