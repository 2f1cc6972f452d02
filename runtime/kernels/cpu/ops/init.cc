// Ops that generate values: initial parameters, random numbers, constants.
//
// Surprising fact: this file is compiled without fused multiply-adds (see philox.h), so that initial weights are
// bitwise identical on every machine.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/random_words.h"
#include "base/vector_levels.h"
#include "ir/state.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "prun/philox.h"

namespace prun::cpu {
namespace {

enum : int64_t { kZeros = 0, kOnes = 1, kConstant = 2, kNormal = 3, kUniform = 4 };

// Maps a rank's part of a parameter to the whole parameter. A row (the elements of one index before the split dim) has
// a run of the whole row's elements for each of its blocks, then padding, which is 0.
struct Run {
  int64_t local, whole, count;  // local, whole: offsets in the rank's row and in the whole row
};
struct Piece {
  int64_t start, count, kind;
  float scale;
  uint64_t key;
  int64_t row, whole_row;  // elements; a parameter that is not split is one row
  std::vector<Run> runs;
  int64_t first_row = 0;  // in the whole parameter
};

// Generates elements [first, last) of a piece's sequence. A block of four elements uses words 0 and 1 for the first
// two, 2 and 3 for the others. Blocks are generated in whole groups, even if a piece has only some elements of one.
struct RandomFill {
  uint64_t seed, key;
  int64_t kind, first, last;
  float scale;
  float* to;

  // This is not a lambda, because GCC 12 ignores the pragma in one.
  template <int lanes>
  PRUN_INLINE void operator()() const {
    constexpr int64_t kNumbers = 4 * kRandomGroups * kRandomBlocks;
    const RoundKeys keys(seed);
    alignas(64) uint32_t words[kNumbers];
    alignas(64) float numbers[kNumbers];
    for (int64_t e = first; e < last;) {
      const int64_t base = e / kNumbers * kNumbers, end = std::min(last, base + kNumbers);
      random_words<lanes>(keys, key, static_cast<uint64_t>(base / 4), words);
      for (int64_t at = 0; at < kNumbers; at += 4 * kRandomBlocks)
        kind == kNormal ? normal_group(words + at, numbers + at) : uniform_group(words + at, numbers + at);
      std::copy(numbers + (e - base), numbers + (end - base), to + (e - first));
      e = end;
    }
  }

  PRUN_INLINE void normal_group(const uint32_t* words, float* numbers) const {
#pragma omp simd
    for (int64_t i = 0; i < kRandomBlocks; ++i) {
      const philox::Pair a = philox::normals(words[i], words[kRandomBlocks + i]);
      const philox::Pair b = philox::normals(words[2 * kRandomBlocks + i], words[3 * kRandomBlocks + i]);
      float* block = numbers + 4 * i;
      block[0] = scale * a.first, block[1] = scale * a.second, block[2] = scale * b.first, block[3] = scale * b.second;
    }
  }
  PRUN_INLINE void uniform_group(const uint32_t* words, float* numbers) const {
    for (int64_t word = 0; word < 4; ++word) {
#pragma omp simd
      for (int64_t i = 0; i < kRandomBlocks; ++i)
        numbers[4 * i + word] = scale * (2.0f * philox::unit(words[word * kRandomBlocks + i]) - 1.0f);
    }
  }
};

void fill_elements(const Piece& piece, uint64_t seed, int64_t first, int64_t last, float* to) {
  switch (piece.kind) {
    case kNormal:
    case kUniform:
      return with_longest_lanes(RandomFill{seed, piece.key, piece.kind, first, last, piece.scale, to});
    default:
      std::fill(to, to + (last - first), piece.kind == kZeros ? 0.0f : piece.kind == kOnes ? 1.0f : piece.scale);
  }
}

// Fills elements [first, last) of the rank's part, over zeros.
void fill_piece(const Piece& piece, uint64_t seed, int64_t first, int64_t last, float* to) {
  for (int64_t row = first / piece.row; row * piece.row < last; ++row) {
    for (const Run& run : piece.runs) {
      const int64_t at = row * piece.row + run.local,
                    shift = (piece.first_row + row) * piece.whole_row + run.whole - at;
      const int64_t begin = std::max(first, at), end = std::min(last, at + run.count);
      if (begin < end) fill_elements(piece, seed, begin + shift, end + shift, to + (begin - first));
    }
  }
}

// Fills elements [begin, end) of the flat vector. Each range scans all pieces, because they are few.
void fill_range(const std::vector<Piece>& pieces, uint64_t seed, int64_t begin, int64_t end, float* to) {
  std::fill(to, to + (end - begin), 0.0f);
  for (const Piece& piece : pieces) {
    const int64_t first = std::max(begin, piece.start), last = std::min(end, piece.start + piece.count);
    if (first < last) fill_piece(piece, seed, first - piece.start, last - piece.start, to + (first - begin));
  }
}

// Adds a run for each block: a block of n slices has ceil(n/t) on each of t ranks, rounded up to a multiple of the
// grain.
void add_blocks(Piece& piece, std::span<const int64_t> extents, int64_t slice, int64_t grain, Share share) {
  for (const int64_t extent : extents) {
    PRUN_CHECK(slice > 0 && extent % slice == 0, std::to_string(extent) + " in slices of " + std::to_string(slice));
    const int64_t room = run_of(extent / slice, share.of, grain) * slice, begin = room * share.index;
    piece.runs.push_back({piece.row, piece.whole_row + begin, std::clamp<int64_t>(extent - begin, 0, room)});
    piece.row += room;
    piece.whole_row += extent;
  }
}

std::vector<Piece> pieces_of(const OpView& view) {
  const Attrs& attrs = view.attrs();
  const std::vector<int64_t> starts = attrs.integers("starts"), counts = attrs.integers("counts"),
                             kinds = attrs.integers("kinds"), keys = attrs.integers("keys");
  const std::vector<double> scales = attrs.numbers("scales");
  const size_t n = starts.size();
  PRUN_CHECK(counts.size() == n && kinds.size() == n && keys.size() == n && scales.size() == n, std::to_string(n));
  const std::vector<int64_t> rows = attrs.integers("split_outer"), block_counts = attrs.integers("split_block_count"),
                             slices = attrs.integers("split_slice"), blocks = attrs.integers("split_blocks"),
                             grains = attrs.integers("split_grain");
  const std::vector<std::string> axes = names_between_commas(attrs.text("split_axis"));
  PRUN_CHECK(rows.empty() || (rows.size() == n && block_counts.size() == n && slices.size() == n && axes.size() == n),
             std::to_string(n));
  PRUN_CHECK(grains.empty() || grains.size() == n, std::to_string(n));
  const std::vector<std::string> parts = names_between_commas(attrs.text("split_parts"));
  std::span<const int64_t> extents = blocks;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < n; ++i) {
    PRUN_CHECK(kinds[i] >= kZeros && kinds[i] <= kUniform, std::to_string(kinds[i]));
    Piece piece{starts[i], counts[i], kinds[i], static_cast<float>(scales[i]), static_cast<uint64_t>(keys[i]),
                0,         0,         {}};
    if (rows.empty() || rows[i] == 0) {
      piece.row = piece.whole_row = counts[i];
      piece.runs = {{0, 0, counts[i]}};
    } else {
      const size_t count = block_counts[i];
      PRUN_CHECK(count <= extents.size(), std::to_string(count));
      add_blocks(piece, extents.first(count), slices[i], grains.empty() ? 1 : grains[i], view.share_along(axes[i]));
      extents = extents.subspan(count);
      PRUN_CHECK(rows[i] * piece.row == counts[i], std::to_string(counts[i]));
      if (i < parts.size()) piece.first_row = rows[i] * view.share_along(parts[i]).index;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// bf16 parameters are generated as f32 in slices on the stack, then rounded.
void convert_range(const std::vector<Piece>& pieces, uint64_t seed, int64_t begin, int64_t end, bf16* to) {
  constexpr int64_t kSlice = 1024;
  float slice[kSlice];
  for (int64_t at = begin; at < end; at += kSlice) {
    const int64_t last = std::min(end, at + kSlice);
    fill_range(pieces, seed, at, last, slice);
    for (int64_t i = at; i < last; ++i) to[i - begin] = to_bf16(slice[i - at]);
  }
}
void convert_range(const std::vector<Piece>& pieces, uint64_t seed, int64_t begin, int64_t end, float* to) {
  fill_range(pieces, seed, begin, end, to);
}

template <class T>
std::unique_ptr<Kernel> init_params(const OpView& view) {
  const int64_t n = view.write(0).count();
  const int64_t offset = n * view.share("axis").index;
  return kernel_of(
      [pieces = pieces_of(view), to = view.out<T>(0), n, offset, table = view.table(), threads = view.threads()] {
        parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
          convert_range(pieces, table->seed, offset + begin, offset + end, to + begin);
        });
      });
}

std::unique_ptr<Kernel> random_int(const OpView& view) {
  const int64_t low = view.attrs().integer("low"), high = view.attrs().integer("high");
  PRUN_CHECK(low <= high, std::to_string(low) + " > " + std::to_string(high));
  return kernel_of([y = view.out<int64_t>(0), n = view.write(0).count(), low, high, table = view.table(),
                    key = static_cast<uint64_t>(view.attrs().integer("key")),
                    rank = static_cast<uint64_t>(view.rank())] {
    for (int64_t i = 0; i < n; ++i) {
      y[i] = philox::integer(table->seed, key, (rank << 32) | static_cast<uint64_t>(i), low, high);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> fill(const OpView& view) {
  return kernel_of([y = view.out<T>(0), n = view.write(0).count(),
                    value = element_of<T>(view.attrs().number("value"))] { std::fill(y, y + n, value); });
}

template <class T>
std::unique_ptr<Kernel> values(const OpView& view) {
  std::vector<T> list;
  for (double x : view.attrs().numbers("values")) list.push_back(element_of<T>(x));
  view.expect_count(view.write(0), std::ssize(list));
  return kernel_of([list = std::move(list), y = view.out<T>(0)] { std::copy(list.begin(), list.end(), y); });
}

// Computes start + i·step. With a count, only the first `count` elements are set and the others are 0; a count above
// the size of the tensor ends the job.
template <class T>
std::unique_ptr<Kernel> iota(const OpView& view) {
  const int64_t* wanted = view.reads() > 0 ? view.in<int64_t>(0) : nullptr;
  return kernel_of([wanted, y = view.out<T>(0), n = view.write(0).count(), start = view.attrs().number("start"),
                    step = view.attrs().number("step", 1)] {
    const int64_t counted = wanted == nullptr ? n : *wanted;
    if (counted < 0 || counted > n) throw plan_error(fmt::format("iota of {} elements, should be 0 to {}", counted, n));
    for (int64_t i = 0; i < counted; ++i) y[i] = element_of<T>(start + static_cast<double>(i) * step);
    std::fill(y + counted, y + n, element_of<T>(0));
  });
}

}  // namespace

const Family init_kernels = {{"init_params", PRUN_FLOAT_MAKER(write(0), init_params<T>(view))},
                             {"random_int", random_int, Accepts::numbers},
                             {"fill", PRUN_NUMBER_MAKER(write(0), fill<T>(view)), Accepts::numbers},
                             {"values", PRUN_NUMBER_MAKER(write(0), values<T>(view)), Accepts::numbers},
                             {"iota", PRUN_NUMBER_MAKER(write(0), iota<T>(view)), Accepts::numbers}};

}  // namespace prun::cpu
