// A rank's packed rows are those of the members one after the other (ir/ops/expert_rows.cc), so that a call names them
// by counts.
#include "exec/row_exchange.h"

#include <algorithm>
#include <cstring>

#include "exec/comm_ops.h"

namespace prun {

RowCounts::RowCounts(const Shape& x, const Attrs& attrs, int ranks, int index)
    : ranks_(ranks), index_(index), home_(attrs.integer("home") != 0), sent_(ranks), received_(ranks) {
  PRUN_CHECK(x.size() == 4 && (home_ || x[1] % ranks == 0), shape_text(x));
  experts_ = home_ ? x[1] : x[1] / ranks;
  slots_ = x[2], width_ = x[3];
  before_ = attrs.integer("round") * slots_;
}

// Returns the elements of the rows that a rank's tokens have in this round at the experts of the rank `block`.
int64_t RowCounts::elements(const int32_t* filled, int64_t rank, int64_t block) const {
  const int32_t* of_rank = filled + (rank * ranks_ + block) * experts_;
  int64_t rows = 0;
  for (int64_t e = 0; e < experts_; ++e) rows += std::clamp<int64_t>(of_rank[e] - before_, 0, slots_);
  return rows * width_;
}

bool RowCounts::update(const int32_t* filled) {
  for (int64_t m = 0; m < ranks_; ++m) {
    const int64_t there = elements(filled, index_, m), here = elements(filled, m, index_);
    sent_[m] = home_ ? here : there;
    received_[m] = home_ ? there : here;
  }
  return std::any_of(filled, filled + ranks_ * ranks_ * experts_, [&](int32_t n) { return n > before_; });
}

std::unique_ptr<Kernel> make_row_exchange(Communicator& communicator, const RankMemory& memory, const Op& op,
                                          const int32_t* filled, prun_queue queue) {
  const Tensor& x = memory.program->tensors[op.reads[0]];
  CollCall call;
  call.kind = CollKind::all_to_all_v;
  call.dtype = x.dtype;
  call.send = memory.data(op.reads[0]);
  call.recv = memory.data(op.writes[0]);
  call.queue = queue;
  return kernel_of([&communicator, call, filled,
                    counts = RowCounts(x.shape, op.attrs, communicator.size(), communicator.index())]() mutable {
    if (!counts.update(filled)) return;
    call.counts = counts.sent().data();
    call.recv_counts = counts.received().data();
    communicator.run(call);
  });
}

void exchange_plainly(const std::vector<RowCounts>& counts, int64_t bytes, const std::vector<PlainMember>& members) {
  const size_t ranks = members.size();
  std::vector<int64_t> taken(ranks, 0);  // elements of each member's input that have been sent
  for (size_t to = 0; to < ranks; ++to) {
    int64_t arrived = 0;
    for (size_t from = 0; from < ranks; ++from) {
      const int64_t count = counts[from].sent()[to];
      PRUN_CHECK(count == counts[to].received()[from], "counts of rows differ");
      std::memcpy(static_cast<std::byte*>(members[to].out) + arrived * bytes,
                  static_cast<const std::byte*>(members[from].in) + taken[from] * bytes, count * bytes);
      arrived += count;
      taken[from] += count;
    }
  }
}

}  // namespace prun
