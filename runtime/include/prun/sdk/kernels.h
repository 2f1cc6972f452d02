// Computations shared by kernels of all devices: a rank's shard, the positions of its tokens in a sample, and an
// optimizer's running averages. Plain structs, so that a kernel takes them by value.
//
// Surprising fact: a split of tokens in two chunks is not contiguous. Rank r of c holds chunks r and 2c−1−r of 2c,
// which balances causal attention: early tokens attend to few keys, late ones to many.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#ifdef __CUDACC__
#define PRUN_SDK_KERNEL __host__ __device__ __attribute__((always_inline))
#else
#define PRUN_SDK_KERNEL __attribute__((always_inline))
#endif

namespace prun::sdk {

struct Share {
  int64_t index = 0, of = 1;
};

struct TokenPositions {
  Share share;          // along the first axis
  int64_t length = 0;   // tokens of this rank
  int64_t held = 0;     // tokens of the share, over all ranks that divide it
  int64_t skipped = 0;  // tokens of the share on the ranks before this one
  int64_t chunk = 0;    // tokens per chunk
  int64_t second = 0;   // position of the second chunk

  PRUN_SDK_KERNEL int64_t whole() const { return share.of * held; }  // tokens of the sample
  // Returns the position of the rank's token.
  PRUN_SDK_KERNEL int64_t of(int64_t token) const {
    token += skipped;
    return token < chunk ? share.index * chunk + token : second + token - chunk;
  }
  // Returns the rank's token at a position, or -1.
  PRUN_SDK_KERNEL int64_t token(int64_t position) const {
    const int64_t first = position - share.index * chunk, later = position - second;
    int64_t found = -1;
    if (first >= 0 && first < chunk)
      found = first;
    else if (chunk < held && later >= 0 && later < chunk)
      found = later + chunk;
    return found >= skipped && found < skipped + length ? found - skipped : -1;
  }
};

// Returns the positions of a rank's `length` tokens, from attributes of an op. `axes` is tokens_axis: the first axis
// has the `chunks`, 1 or 2; each later axis divides the tokens of a share into runs. share_along(axes) returns a Share.
template <class ShareAlong>
TokenPositions token_positions(const std::string& axes, int64_t chunks, int64_t length, const ShareAlong& share_along) {
  const size_t comma = std::min(axes.find(','), axes.size());
  const Share share = share_along(axes.substr(0, comma)),
              run = share_along(axes.substr(std::min(comma + 1, axes.size())));
  const int64_t held = run.of * length, chunk = held / chunks;
  return {share, length, held, run.index * length, chunk, chunks == 1 ? 0 : (2 * share.of - 1 - share.index) * chunk};
}

// Computes beta·old + share·now in f32. `rest` is the error of rounding beta to f32.
struct Blend {
  float beta, rest, share;
  // `now` already contains the factor share.
  PRUN_SDK_KERNEL float of(float old, float now) const { return beta * old + (rest * old + now); }
};
inline Blend blend(double beta, double share) {
  const float rounded = static_cast<float>(beta);
  return {rounded, static_cast<float>(beta - static_cast<double>(rounded)), static_cast<float>(share)};
}

}  // namespace prun::sdk
