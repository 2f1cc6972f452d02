// Ops that generate values: initial parameters, random numbers, constants.
//
// Surprising fact: this file is compiled without fused multiply-adds (see prun/philox.h), so that initial weights are
// bitwise identical on every device.
#include <algorithm>

#include "block.cuh"
#include "launch.h"
#include "prun/philox.h"

namespace prun::cuda {
namespace {

namespace philox = prun::philox;

constexpr int kThreads = 256;

enum : int { kZeros = 0, kOnes = 1, kConstant = 2, kNormal = 3, kUniform = 4 };

// Maps a rank's part of a parameter to the whole parameter. A row (the elements of one index before the split dim) has
// a run of the whole row's elements for each of its blocks, then padding, which is 0.
struct Stretch {
  int64_t local, whole, count;  // local, whole: offsets in the rank's row and in the whole row
};
struct Piece {
  int64_t start = 0, count = 0;
  int64_t row = 0, whole_row = 0;  // elements; a parameter that is not split is one row
  uint64_t key = 0;
  float scale = 0;
  int kind = kZeros, first_run = 0, runs = 0;
  int64_t first_row = 0;  // in the whole parameter
};

struct Pieces {
  std::vector<Piece> pieces;  // sorted by start
  std::vector<Stretch> runs;
};

// Returns element `e` of a random sequence, from its block of four.
__device__ float random_element(const Piece& piece, uint64_t seed, int64_t e) {
  const philox::Words words = philox::block(seed, piece.key, static_cast<uint64_t>(e / 4));
  const int place = static_cast<int>(e % 4);
  if (piece.kind == kUniform) return piece.scale * (2.0f * philox::unit(words[place]) - 1.0f);
  const philox::Pair pair = philox::normals(words[place / 2 * 2], words[place / 2 * 2 + 1]);
  return piece.scale * (place % 2 == 0 ? pair.first : pair.second);
}

// Returns element `e` of the rank's part.
__device__ float element_of(const Piece& piece, const Stretch* runs, uint64_t seed, int64_t e) {
  const int64_t row = piece.first_row + e / piece.row, place = e % piece.row;
  for (int i = piece.first_run; i < piece.first_run + piece.runs; ++i) {
    const int64_t at = place - runs[i].local;
    if (at < 0 || at >= runs[i].count) continue;
    if (piece.kind >= kNormal) return random_element(piece, seed, row * piece.whole_row + runs[i].whole + at);
    return piece.kind == kZeros ? 0.0f : piece.kind == kOnes ? 1.0f : piece.scale;
  }
  return 0.0f;
}

template <class T>
__global__ void init_params(T* to, int64_t n, int64_t offset, const Piece* pieces, int count, const Stretch* runs,
                            const prun_step_values* values) {
  const uint64_t seed = values->seed;
  for (int64_t i = first_item(); i < n; i += item_stride()) {
    int low = 0, high = count;  // the first piece that starts after the element is in [low, high]
    while (low < high) {
      const int middle = (low + high) / 2;
      if (pieces[middle].start <= offset + i)
        low = middle + 1;
      else
        high = middle;
    }
    const Piece* piece = pieces + low - 1;
    const bool inside = low > 0 && offset + i < piece->start + piece->count;
    to[i] = narrow<T>(inside ? element_of(*piece, runs, seed, offset + i - piece->start) : 0.0f);
  }
}

// Adds a run for each block: a block of n slices has ceil(n/t) on each of t ranks, rounded up to a multiple of the
// grain.
void add_blocks(const OpView& view, Piece& piece, std::vector<Stretch>& runs, std::span<const int64_t> extents,
                int64_t slice, int64_t grain, Share share) {
  for (const int64_t extent : extents) {
    view.expect(slice > 0 && extent % slice == 0,
                "a block of " + std::to_string(extent) + " elements in slices of " + std::to_string(slice));
    const int64_t equal = (extent / slice + share.of - 1) / share.of;
    const int64_t room = (equal + grain - 1) / grain * grain * slice, begin = room * share.index;
    runs.push_back({piece.row, piece.whole_row + begin, std::clamp<int64_t>(extent - begin, 0, room)});
    piece.row += room;
    piece.whole_row += extent;
  }
  piece.runs = static_cast<int>(extents.size());
}

// Splits "dp,,tp" into "dp", "", "tp".
std::vector<std::string> names_between_commas(const std::string& text) {
  std::vector<std::string> names = {""};
  for (const char c : text) {
    if (c == ',')
      names.emplace_back();
    else
      names.back() += c;
  }
  return names;
}

Pieces pieces_of(const OpView& view) {
  const auto starts = view.integers("starts"), counts = view.integers("counts"), kinds = view.integers("kinds"),
             keys = view.integers("keys"), rows = view.integers("split_outer"),
             block_counts = view.integers("split_block_count"), slices = view.integers("split_slice"),
             grains = view.integers("split_grain");
  const auto scales = view.numbers("scales");
  const std::vector<std::string> axes = names_between_commas(view.text("split_axis"));
  const std::vector<std::string> parts = names_between_commas(view.text("split_parts"));
  const size_t n = starts.size();
  const bool split = !rows.empty();
  view.expect(counts.size() == n && kinds.size() == n && keys.size() == n && scales.size() == n,
              "lists have other lengths than starts");
  view.expect(!split || (rows.size() == n && block_counts.size() == n && slices.size() == n && axes.size() == n),
              "lists of split pieces have other lengths than starts");
  view.expect(grains.empty() || grains.size() == n, "split_grain has another length than starts");
  Pieces all;
  std::span<const int64_t> extents = view.integers("split_blocks");
  for (size_t i = 0; i < n; ++i) {
    view.expect(kinds[i] >= kZeros && kinds[i] <= kUniform, "there is no kind " + std::to_string(kinds[i]));
    Piece piece{.start = starts[i], .count = counts[i], .key = static_cast<uint64_t>(keys[i])};
    piece.scale = static_cast<float>(scales[i]);
    piece.kind = static_cast<int>(kinds[i]);
    piece.first_run = static_cast<int>(all.runs.size());
    if (!split || rows[i] == 0) {
      piece.row = piece.whole_row = counts[i];
      all.runs.push_back({0, 0, counts[i]});
      piece.runs = 1;
    } else {
      const size_t blocks = static_cast<size_t>(block_counts[i]);
      view.expect(blocks <= extents.size(), "split_blocks is too short");
      add_blocks(view, piece, all.runs, extents.first(blocks), slices[i], grains.empty() ? 1 : grains[i],
                 view.share_along(axes[i]));
      extents = extents.subspan(blocks);
      view.expect(rows[i] * piece.row == counts[i],
                  "a piece of " + std::to_string(counts[i]) + " elements, not " + std::to_string(rows[i] * piece.row));
      if (i < parts.size()) piece.first_row = rows[i] * view.share_along(parts[i]).index;
    }
    if (piece.count > 0) all.pieces.push_back(piece);
  }
  std::ranges::sort(all.pieces, [](const Piece& a, const Piece& b) { return a.start < b.start; });
  for (size_t i = 1; i < all.pieces.size(); ++i) {
    const int64_t end = all.pieces[i - 1].start + all.pieces[i - 1].count, start = all.pieces[i].start;
    view.expect(end <= start,
                "a piece ends at " + std::to_string(end) + ", the next starts at " + std::to_string(start));
  }
  return all;
}

template <class T>
std::shared_ptr<const T> table_of(const OpView& view, const std::vector<T>& items) {
  return std::static_pointer_cast<const T>(device_table(view.context(), items.data(), items.size() * sizeof(T)));
}

std::unique_ptr<Kernel> make_init_params(const OpView& view) {
  const int64_t n = view.write(0).count(), offset = n * view.share("axis").index;
  Pieces all = pieces_of(view);
  const int count = static_cast<int>(all.pieces.size());
  if (count == 0) all.pieces.emplace_back(), all.runs.emplace_back();  // no table may be empty
  return with_float(view.write(0).dtype, [&]<class T>() {
    return kernel_of([to = view.out<T>(0), n, offset, count, pieces = table_of(view, all.pieces),
                      runs = table_of(view, all.runs), values = view.values()](cudaStream_t stream) {
      launch(init_params<T>, blocks_for(n, kThreads), kThreads, 0, stream, to, n, offset, pieces.get(), count,
             runs.get(), values);
    });
  });
}

__global__ void random_int(int64_t* y, int64_t n, int64_t low, int64_t high, uint64_t key, uint64_t rank,
                           const prun_step_values* values) {
  for (int64_t i = first_item(); i < n; i += item_stride())
    y[i] = philox::integer(values->seed, key, (rank << 32) | static_cast<uint64_t>(i), low, high);
}

std::unique_ptr<Kernel> make_random_int(const OpView& view) {
  const int64_t low = view.integer("low"), high = view.integer("high");
  view.expect(low <= high, "low = " + std::to_string(low) + " is above high = " + std::to_string(high));
  return kernel_of([y = view.out<int64_t>(0), n = view.write(0).count(), low, high,
                    key = static_cast<uint64_t>(view.integer("key")), rank = static_cast<uint64_t>(view.rank()),
                    values = view.values()](cudaStream_t stream) {
    launch(random_int, blocks_for(n, kThreads), kThreads, 0, stream, y, n, low, high, key, rank, values);
  });
}

template <class T>
__host__ __device__ T number_as(double x) {
  if constexpr (std::is_same_v<T, bf16>)
    return narrow<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

std::unique_ptr<Kernel> make_values(const OpView& view) {
  return with_number(view.write(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    std::vector<T> values;
    for (const double x : view.numbers("values")) values.push_back(number_as<T>(x));
    view.expect_count(view.write(0), static_cast<int64_t>(values.size()));
    if (values.empty()) return kernel_of([](cudaStream_t) {});
    return kernel_of(
        [table = table_of(view, values), y = view.out<T>(0), bytes = values.size() * sizeof(T)](cudaStream_t stream) {
          check(cudaMemcpyAsync(y, table.get(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
        });
  });
}

// Computes start + i·step; with a count, only the first `count` elements are set and the others are 0.
template <class T>
__global__ void iota(const int64_t* wanted, T* y, int64_t n, double start, double step) {
  const int64_t counted = wanted == nullptr ? n : *wanted;
  for (int64_t i = first_item(); i < n; i += item_stride())
    y[i] = number_as<T>(i < counted ? start + static_cast<double>(i) * step : 0.0);
}

std::unique_ptr<Kernel> make_iota(const OpView& view) {
  return with_number(view.write(0).dtype, [&]<class T>() {
    return kernel_of([wanted = view.reads() > 0 ? view.in<int64_t>(0) : nullptr, y = view.out<T>(0),
                      n = view.write(0).count(), start = view.number("start"),
                      step = view.number("step", 1)](cudaStream_t stream) {
      launch(iota<T>, blocks_for(n, kThreads), kThreads, 0, stream, wanted, y, n, start, step);
    });
  });
}

std::string any_number(const OpView&) { return ""; }

const KernelFamily kFamily = {
    {"init_params", make_init_params},
    {"random_int", make_random_int},
    {"values", make_values, nullptr, any_number},
    {"iota", make_iota, nullptr, any_number},
};

}  // namespace
}  // namespace prun::cuda
