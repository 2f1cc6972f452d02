// What kernels of all devices compute alike: which part of a whole a rank holds, where its tokens are in a sample, and
// running averages of an optimizer. Plain structs, so that a kernel takes them by value.
//
// Surprising fact: a split of tokens in two chunks is not contiguous. Rank r of c holds chunks r and 2c−1−r of 2c,
// which pairs early tokens, which attend to few keys in causal attention, with late ones.
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
  int64_t length = 0;   // the rank's tokens
  int64_t held = 0;     // tokens of the share on all its ranks
  int64_t skipped = 0;  // those of them on the ranks before this one
  int64_t chunk = 0;    // tokens
  int64_t second = 0;   // position of the second chunk

  PRUN_SDK_KERNEL int64_t whole() const { return share.of * held; }  // tokens of the whole sample
  // The position of the rank's token.
  PRUN_SDK_KERNEL int64_t of(int64_t token) const {
    token += skipped;
    return token < chunk ? share.index * chunk + token : second + token - chunk;
  }
  // The rank's token at a position, or -1.
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

// Positions of a rank's `length` tokens by attributes of ops. `axes` is tokens_axis: the first axis has the `chunks`, 1
// or 2; each further one divides the tokens of a share into runs. share_along(axes) is a Share.
template <class ShareAlong>
TokenPositions token_positions(const std::string& axes, int64_t chunks, int64_t length, const ShareAlong& share_along) {
  const size_t comma = std::min(axes.find(','), axes.size());
  const Share share = share_along(axes.substr(0, comma)),
              run = share_along(axes.substr(std::min(comma + 1, axes.size())));
  const int64_t held = run.of * length, chunk = held / chunks;
  return {share, length, held, run.index * length, chunk, chunks == 1 ? 0 : (2 * share.of - 1 - share.index) * chunk};
}

// Computes beta·old + share·now in f32. `rest` is the remainder of beta after rounding to f32.
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
