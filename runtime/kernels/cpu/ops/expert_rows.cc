// pack_rows and unpack_rows: the rows with a token of a round, between the slots of experts and one run of rows.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/parallel.h"

namespace prun::cpu {
namespace {

// Slots [experts, sources·size] of rows; the round takes those of each source from its token `before` on.
struct Rows {
  int64_t experts, sources, size, before, bytes;  // bytes of a row

  Rows(const OpView& view, const Tensor& slotted) {
    PRUN_CHECK(slotted.shape.size() == 3, shape_text(slotted.shape));
    experts = slotted.shape[0];
    sources = last_dim(view.read(1).shape);
    PRUN_CHECK(sources > 0 && slotted.shape[1] % sources == 0, shape_text(view.read(1).shape));
    view.expect_count(view.read(1), experts * sources);
    view.expect_count(view.write(0), view.read(0).count());
    size = slotted.shape[1] / sources;
    before = view.attrs().integer("round") * size;
    bytes = slotted.shape[2] * dtype_bytes(slotted.dtype);
  }
  // Sets first[p·experts + e] to the packed row at which the rows of an expert from a source begin, and the last
  // element to the number of rows.
  void find_first(const int32_t* filled, int64_t* first) const {
    int64_t row = 0;
    for (int64_t p = 0; p < sources; ++p)
      for (int64_t e = 0; e < experts; ++e) {
        first[p * experts + e] = row;
        row += std::clamp<int64_t>(filled[e * sources + p] - before, 0, size);
      }
    first[sources * experts] = row;
  }
};

template <bool kPack>
std::unique_ptr<Kernel> make_packed(const OpView& view) {
  const Rows rows(view, kPack ? view.read(0) : view.write(0));
  return kernel_of([x = bytes_in(view, 0), filled = view.in<int32_t>(1), y = bytes_out(view, 0), rows,
                    first = std::vector<int64_t>(rows.sources * rows.experts + 1), threads = view.threads()]() mutable {
    rows.find_first(filled, first.data());
    const int64_t all = first.back(), runs = rows.sources * rows.experts;
    if (all == 0) return;
    constexpr int64_t kSmall = 65536;
    parallel_for(all * rows.bytes < kSmall ? 1 : threads, runs, [&](int64_t run, int) {
      const int64_t source = run / rows.experts, expert = run % rows.experts, taken = first[run + 1] - first[run];
      const int64_t slots = (expert * rows.sources + source) * rows.size * rows.bytes, packed = first[run] * rows.bytes;
      std::memcpy(y + (kPack ? packed : slots), x + (kPack ? slots : packed), taken * rows.bytes);
      if (!kPack) std::memset(y + slots + taken * rows.bytes, 0, (rows.size - taken) * rows.bytes);
    });
  });
}

}  // namespace

const Family expert_rows_kernels = {{"pack_rows", make_packed<true>}, {"unpack_rows", make_packed<false>}};

}  // namespace prun::cpu
