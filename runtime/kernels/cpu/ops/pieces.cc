// join_pieces, cut_pieces and take_piece: copies of blocks between [pieces, outer, inner] and [outer, pieces, inner].
// take_slots: the numbers of slots in a rank's piece.
#include <cstring>

#include "kernels/cpu/ops/elementwise.h"

namespace prun::cpu {
namespace {

// The whole tensor as [outer, pieces, inner]; inner in bytes.
struct Blocks {
  int64_t outer, pieces, inner;
};
Blocks blocks_of(const OpView& view, const Tensor& whole) {
  const int64_t pieces = view.attrs().integer("pieces", 1), dim = view.attrs().integer("dim");
  PRUN_CHECK(pieces >= 1 && dim >= 0 && dim < std::ssize(whole.shape), shape_text(whole.shape));
  const int64_t outer = element_count({whole.shape.begin(), whole.shape.begin() + dim});
  PRUN_CHECK(whole.count() % std::max<int64_t>(1, outer * pieces) == 0, shape_text(whole.shape));
  return {outer, pieces, outer == 0 ? 0 : whole.bytes() / (outer * pieces)};
}

// Copies blocks between the whole tensor, in which the pieces alternate, and the pieces stored one after the other.
template <bool kJoin>
std::unique_ptr<Kernel> make_moved(const OpView& view) {
  const Blocks blocks = blocks_of(view, kJoin ? view.write(0) : view.read(0));
  view.expect_count(view.write(0), view.read(0).count());
  PRUN_CHECK(view.write(0).dtype == view.read(0).dtype, std::string(dtype_name(view.write(0).dtype)));
  return kernel_of([x = bytes_in(view, 0), y = bytes_out(view, 0), blocks, threads = view.threads()] {
    const int64_t count = blocks.outer * blocks.pieces;
    constexpr int64_t kSmall = 65536;
    parallel_for(count * blocks.inner < kSmall ? 1 : threads, count, [&](int64_t block, int) {
      const int64_t in_pieces = block % blocks.pieces * blocks.outer + block / blocks.pieces;
      std::memcpy(y + (kJoin ? block : in_pieces) * blocks.inner, x + (kJoin ? in_pieces : block) * blocks.inner,
                  blocks.inner);
    });
  });
}

std::unique_ptr<Kernel> make_take(const OpView& view) {
  const Blocks blocks = blocks_of(view, view.read(0));
  const int64_t index = view.share("axis").index;
  view.expect_count(view.write(0), view.read(0).count() / blocks.pieces);
  PRUN_CHECK(index < blocks.pieces, std::to_string(index) + " of " + std::to_string(blocks.pieces));
  return kernel_of(
      [x = bytes_in(view, 0) + index * blocks.inner, y = bytes_out(view, 0), blocks, threads = view.threads()] {
        parallel_for(threads, blocks.outer, [&](int64_t i, int) {
          std::memcpy(y + i * blocks.inner, x + i * blocks.pieces * blocks.inner, blocks.inner);
        });
      });
}

std::unique_ptr<Kernel> make_take_slots(const OpView& view) {
  const int64_t run = view.attrs().integer("run"), block = run * view.attrs().integer("pieces"),
                own = view.share("axis").index, n = view.read(0).count();
  view.expect_count(view.write(0), n);
  return kernel_of([x = view.in<int32_t>(0), y = view.out<int32_t>(0), run, block, own, n] {
    for (int64_t i = 0; i < n; ++i) {
      const bool mine = x[i] >= 0 && x[i] % block / run == own;
      y[i] = mine ? static_cast<int32_t>(x[i] / block * run + x[i] % run) : -1;
    }
  });
}

}  // namespace

const Family piece_kernels = {{"join_pieces", make_moved<true>, Accepts::numbers},
                              {"cut_pieces", make_moved<false>, Accepts::numbers},
                              {"take_piece", make_take, Accepts::numbers},
                              {"take_slots", make_take_slots, Accepts::numbers}};

}  // namespace prun::cpu
