// The core's own collectives, and the choice among them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "comm/collectives/algorithm_costs.h"
#include "comm/collectives/wire.h"
#include "comm/comm.h"
#include "prun/sdk/descriptor.h"

namespace prun {

// Memory that a communicator's algorithms work in; it only grows.
class Scratch {
 public:
  std::byte* get(int64_t bytes);  // aligned to 64; the previous contents are lost
 private:
  sdk::Mapping pages_;
};

// The context of an algorithm. Algorithms queue messages on the wire, in the same order on every member; Wire::finish
// waits for messages that are still queued when they return.
struct Group {
  Wire& wire;
  Scratch& scratch;
  int index, size;
  int right(int distance = 1) const { return (index + distance) % size; }
  int left(int distance = 1) const { return (index + size - distance) % size; }
};

// Copies bytes unless source and destination are the same.
void copy_block(void* to, const void* from, int64_t bytes);
// Returns the reduction for partial sums: for an average, only the last reduction divides.
inline RedOp partial_op(const CollCall& call) { return call.redop == RedOp::avg ? RedOp::sum : call.redop; }

using AlgorithmFn = void (*)(Group&, const CollCall&);

struct Algorithm {
  CollKind kind;
  const char* name;
  int64_t max_bytes;  // largest call_bytes; the first matching row runs
  int max_ranks;
  bool rounds_partials;  // partial sums are sent in the buffer's own type, and are not in rank order
  Wire::Ring ring;
  AlgorithmFn run;
  bool in_pairs = false;  // requires a power of two members
};

// Returns the row that comm.algorithm names if it can run the call, whatever its limits; otherwise the fastest by
// `costs`, if it saves a tenth over the table's row; otherwise the table's row.
const Algorithm& choose_algorithm(const CollCall& call, int size, const std::string& wanted,
                                  const AlgorithmCosts& costs = {});
// Returns whether a part of a call has bitwise identical results to the whole, which holds if the algorithms of both
// sum in member order.
bool divides(const CollCall& whole, const CollCall& part, int size, const std::string& wanted,
             const AlgorithmCosts& costs = {});
// Returns the reason for choose_algorithm's result: "more than 64 KiB, up to 32 ranks".
std::string explain_algorithm(const CollCall& call, int size, const std::string& wanted,
                              const AlgorithmCosts& costs = {});
// Throws usage_error unless the name is "" or an algorithm's.
void check_algorithm_name(const std::string& wanted);

// Gathers blocks of `bytes`: blocks[0] is this member's, blocks[d] becomes that of member left(d). Bruck et al. 1997.
void bruck_exchange(Group& group, std::byte* blocks, int64_t bytes);

// The algorithms, one file for each family.
void all_reduce_gather(Group&, const CollCall&);  // for small buffers: every member gathers all inputs
void all_reduce_direct(Group&, const CollCall&);  // owners of slices sum them in rank order and send the results to all
void all_reduce_ring(Group&, const CollCall&);
void all_reduce_doubling(Group&, const CollCall&);  // in pairs: exchanges the whole buffer
void all_reduce_halving(Group&, const CollCall&);   // in pairs: exchanges halves, then all-gathers
void reduce_scatter_direct(Group&, const CollCall&);
void reduce_scatter_bruck(Group&, const CollCall&);  // for small buffers: ceil(log2 n) messages per rank
void reduce_scatter_halving(Group&, const CollCall&);
void reduce_scatter_pairwise(Group&, const CollCall&);  // one partner at a time
void reduce_scatter_ring(Group&, const CollCall&);
void all_gather_bruck(Group&, const CollCall&);
void all_gather_direct(Group&, const CollCall&);
void all_gather_ring(Group&, const CollCall&);
void all_gather_v_direct(Group&, const CollCall&);
void broadcast_tree(Group&, const CollCall&);
void broadcast_chain(Group&, const CollCall&);
void reduce_gather(Group&, const CollCall&);  // for small buffers: the root gathers all inputs
void reduce_direct(Group&, const CollCall&);  // owners of slices sum them and send the results to the root
void gather_direct(Group&, const CollCall&);
void scatter_direct(Group&, const CollCall&);
void all_to_all_direct(Group&, const CollCall&);
void all_to_all_bruck(Group&, const CollCall&);
void all_to_all_v_direct(Group&, const CollCall&);
void barrier_dissemination(Group&, const CollCall&);

// Runs a call in a group of one, as a copy.
void run_alone(const CollCall& call);

}  // namespace prun
