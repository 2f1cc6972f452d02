// The elements that the op muon updates, and where the vector of orthogonalized matrices has their updates (attributes
// matrix_starts, matrix_counts, matrix_places and matrix_scales; update_ranges.h has the settings).
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "prun/sdk/update_ranges.h"

namespace prun::sdk {

struct MatrixPiece {
  int64_t begin = 0, end = 0;  // elements of the op's parameters
  int64_t source = 0;          // element of the updates that belongs to `begin`
  double scale = 1, lr_factor = 1, weight_decay = 0;
};

// Returns the pieces of an op of `count` elements in ascending order of ranges; elements outside are no matrix's. Its
// first element is element `offset` of the vector in which matrices start. `part`: the rank's index among the ranks
// that have parts of each matrix.
inline std::vector<MatrixPiece> matrix_pieces(std::span<const int64_t> starts, std::span<const int64_t> counts,
                                              std::span<const int64_t> places, std::span<const double> scales,
                                              int64_t part, int64_t offset, int64_t count,
                                              const std::vector<UpdateRange>& ranges) {
  std::vector<MatrixPiece> pieces;
  for (const UpdateRange& range : ranges)
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t first = starts[i] - offset, begin = std::max({first, range.begin, int64_t{0}}),
                    end = std::min({first + counts[i], range.end, count});
      if (begin < end)
        pieces.push_back(
            {begin, end, places[i] + part * counts[i] + begin - first, scales[i], range.lr_factor, range.weight_decay});
    }
  return pieces;
}

}  // namespace prun::sdk
