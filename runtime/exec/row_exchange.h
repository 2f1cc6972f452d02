// The calls of exchange_rows: which rows each rank sends to each, by the numbers of filled slots of all ranks.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "exec/plain_collectives.h"

namespace prun {

// The elements that one rank sends to each member of its group and receives from it.
class RowCounts {
 public:
  // `x`: shape of the op's first operand, [sources, experts, slots, width].
  RowCounts(const Shape& x, const Attrs& attrs, int ranks, int index);
  // `filled` [ranks, experts of all ranks]: each rank's choices of each expert. Returns whether any rank has a row in
  // this round, the same on all ranks.
  bool update(const int32_t* filled);
  const std::vector<int64_t>& sent() const { return sent_; }
  const std::vector<int64_t>& received() const { return received_; }

 private:
  int64_t elements(const int32_t* filled, int64_t rank, int64_t block) const;

  int64_t ranks_, index_, experts_, slots_, width_, before_;  // experts of one rank; choices in earlier rounds
  bool home_;                                                 // from the experts' ranks to the tokens'
  std::vector<int64_t> sent_, received_;
};

// Returns a kernel that skips rounds without a row on any rank. `filled`: the numbers in host memory, read by each run;
// with a queue the rows are in the device's memory.
std::unique_ptr<Kernel> make_row_exchange(Communicator& communicator, const RankMemory& memory, const Op& op,
                                          const int32_t* filled, prun_queue queue);

// Exchanges the rows of all members at once. `counts`: those of each member; `bytes`: the size of an element.
void exchange_plainly(const std::vector<RowCounts>& counts, int64_t bytes, const std::vector<PlainMember>& members);

}  // namespace prun
