// The core's own collectives, and which of them runs a call.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "comm/collectives/algorithm_costs.h"
#include "comm/collectives/wire.h"
#include "comm/comm.h"
#include "prun/sdk/descriptor.h"

namespace prun {

// Memory that a communicator's algorithms work in; grows when a larger call comes, else stays.
class Scratch {
 public:
  std::byte* get(int64_t bytes);  // aligned to 64; what it held before is lost
 private:
  sdk::Mapping pages_;
};

// What an algorithm runs on. Algorithms queue messages on the wire, in the same order on every member, and leave when
// nothing of theirs is in flight; Wire::finish sees to the rest.
struct Group {
  Wire& wire;
  Scratch& scratch;
  int index, size;
  int right(int distance = 1) const { return (index + distance) % size; }
  int left(int distance = 1) const { return (index + size - distance) % size; }
};

// Copies bytes that are not there already.
void copy_block(void* to, const void* from, int64_t bytes);
// How partial sums are added up: an average divides only the last one.
inline RedOp partial_op(const CollCall& call) { return call.redop == RedOp::avg ? RedOp::sum : call.redop; }

using AlgorithmFn = void (*)(Group&, const CollCall&);

struct Algorithm {
  CollKind kind;
  const char* name;
  int64_t max_bytes;  // largest call_bytes; the first row that fits runs
  int max_ranks;
  bool rounds_partials;  // partial sums travel in the buffer's own type and in no fixed order
  Wire::Ring ring;
  AlgorithmFn run;
  bool in_pairs = false;  // only for a power of two members
};

// `wanted` (comm.algorithm) wins where a row of that name can do the call, whatever its limits; else the one that takes
// least by `costs`, where that is a tenth less than the table's; else the table's.
const Algorithm& choose_algorithm(const CollCall& call, int size, const std::string& wanted,
                                  const AlgorithmCosts& costs = {});
// Whether a part of a call gets the bits of the whole: the algorithms of both sum in the order of the members.
bool divides(const CollCall& whole, const CollCall& part, int size, const std::string& wanted,
             const AlgorithmCosts& costs = {});
// Why choose_algorithm takes that one: "more than 64 KiB, up to 32 ranks".
std::string explain_algorithm(const CollCall& call, int size, const std::string& wanted,
                              const AlgorithmCosts& costs = {});
// Throws usage_error unless `wanted` is "" or the name of an algorithm.
void check_algorithm_name(const std::string& wanted);

// Gathers blocks of `bytes`: blocks[0] is the own one, blocks[d] becomes that of member left(d). Bruck et al. 1997.
void bruck_exchange(Group& group, std::byte* blocks, int64_t bytes);

// The algorithms, one file for each family.
void all_reduce_gather(Group&, const CollCall&);  // everybody gathers all inputs: small
void all_reduce_direct(Group&, const CollCall&);  // slices to their owners, sums in rank order, results to all
void all_reduce_ring(Group&, const CollCall&);
void all_reduce_doubling(Group&, const CollCall&);  // in pairs, everything to the partner
void all_reduce_halving(Group&, const CollCall&);   // in pairs, half of what is left to the partner, and back
void reduce_scatter_direct(Group&, const CollCall&);
void reduce_scatter_bruck(Group&, const CollCall&);  // ceil(log2 n) messages a rank: small
void reduce_scatter_halving(Group&, const CollCall&);
void reduce_scatter_pairwise(Group&, const CollCall&);  // one partner after the other
void reduce_scatter_ring(Group&, const CollCall&);
void all_gather_bruck(Group&, const CollCall&);
void all_gather_direct(Group&, const CollCall&);
void all_gather_ring(Group&, const CollCall&);
void all_gather_v_direct(Group&, const CollCall&);
void broadcast_tree(Group&, const CollCall&);
void broadcast_chain(Group&, const CollCall&);
void reduce_gather(Group&, const CollCall&);  // the root gathers all inputs: small
void reduce_direct(Group&, const CollCall&);  // slices to their owners, results to the root
void gather_direct(Group&, const CollCall&);
void scatter_direct(Group&, const CollCall&);
void all_to_all_direct(Group&, const CollCall&);
void all_to_all_bruck(Group&, const CollCall&);
void all_to_all_v_direct(Group&, const CollCall&);
void barrier_dissemination(Group&, const CollCall&);

// A call in a group of one: a copy.
void run_alone(const CollCall& call);

}  // namespace prun
