// Chooses an algorithm: one table, first matching row. `comm.algorithm` overrides it by name.
//
// Thresholds were measured with 2 to 8 ranks on 2 cores, over AF_UNIX and TCP, all names of a kind in one run:
//   prun bench all_reduce --nproc 8 --transport socket [--transport-options unix=0] --bytes 4,4K,16K,64K,256K,1M
//   --algorithm NAME
#include "comm/collectives/algorithm.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/text.h"
#include "comm/reduce.h"

namespace prun {
namespace {

constexpr int64_t kAny = INT64_MAX;
constexpr int kMany = INT_MAX;
constexpr double kWorthIt = 0.9;  // smaller differences are noise
using Ring = Wire::Ring;

constexpr const char* kGather = "gather";

// clang-format off
constexpr Algorithm kAlgorithms[] = {
    // kind                    name             max bytes  ranks  rounds  ring          run                in pairs
    {CollKind::all_reduce,     kGather,         16 << 10,  3,     false,  Ring::within, all_reduce_gather},
    {CollKind::all_reduce,     "direct",        kAny,      3,     false,  Ring::within, all_reduce_direct},
    {CollKind::all_reduce,     kGather,         4 << 10,   4,     false,  Ring::within, all_reduce_gather},
    {CollKind::all_reduce,     "doubling",      256 << 10, 4,     true,   Ring::apart,  all_reduce_doubling},
    {CollKind::all_reduce,     kGather,         32 << 10,  4,     false,  Ring::within, all_reduce_gather},
    {CollKind::all_reduce,     "direct",        kAny,      4,     false,  Ring::within, all_reduce_direct},
    {CollKind::all_reduce,     kGather,         1 << 10,   16,    false,  Ring::within, all_reduce_gather},
    {CollKind::all_reduce,     "doubling",      32 << 10,  kMany, true,   Ring::apart,  all_reduce_doubling},
    {CollKind::all_reduce,     "halving",       512 << 10, kMany, true,   Ring::apart,  all_reduce_halving},
    {CollKind::all_reduce,     "halving",       kAny,      32,    true,   Ring::apart,  all_reduce_halving, true},
    {CollKind::all_reduce,     kGather,         16 << 10,  16,    false,  Ring::within, all_reduce_gather},
    {CollKind::all_reduce,     "direct",        kAny,      32,    false,  Ring::within, all_reduce_direct},
    {CollKind::all_reduce,     "ring",          kAny,      kMany, true,   Ring::within, all_reduce_ring},
    {CollKind::all_reduce,     "direct",        kAny,      kMany, false,  Ring::within, all_reduce_direct},
    {CollKind::reduce_scatter, "direct",        kAny,      2,     false,  Ring::within, reduce_scatter_direct},
    {CollKind::reduce_scatter, "bruck",         16 << 10,  kMany, false,  Ring::within, reduce_scatter_bruck},
    {CollKind::reduce_scatter, "direct",        kAny,      4,     false,  Ring::within, reduce_scatter_direct},
    {CollKind::reduce_scatter, "halving",       1 << 20,   kMany, true,   Ring::apart,  reduce_scatter_halving, true},
    {CollKind::reduce_scatter, "pairwise",      16 << 20,  8,     true,   Ring::within, reduce_scatter_pairwise, true},
    {CollKind::reduce_scatter, "halving",       16 << 20,  kMany, true,   Ring::apart,  reduce_scatter_halving, true},
    {CollKind::reduce_scatter, "halving",       64 << 20,  32,    true,   Ring::apart,  reduce_scatter_halving, true},
    {CollKind::reduce_scatter, "direct",        kAny,      32,    false,  Ring::within, reduce_scatter_direct},
    {CollKind::reduce_scatter, "ring",          kAny,      kMany, true,   Ring::within, reduce_scatter_ring},
    {CollKind::reduce_scatter, "direct",        kAny,      kMany, false,  Ring::within, reduce_scatter_direct},
    {CollKind::all_gather,     "bruck",         128 << 10, kMany, false,  Ring::within, all_gather_bruck},
    {CollKind::all_gather,     "direct",        16 << 20,  32,    false,  Ring::within, all_gather_direct},
    {CollKind::all_gather,     "ring",          kAny,      kMany, false,  Ring::within, all_gather_ring},
    {CollKind::broadcast,      "tree",          256 << 10, kMany, false,  Ring::later,  broadcast_tree},
    {CollKind::broadcast,      "chain",         kAny,      kMany, false,  Ring::later,  broadcast_chain},
    {CollKind::reduce,         kGather,         16 << 10,  kMany, false,  Ring::apart,  reduce_gather},
    {CollKind::reduce,         "direct",        kAny,      kMany, false,  Ring::within, reduce_direct},
    {CollKind::gather,         "direct",        kAny,      kMany, false,  Ring::apart,  gather_direct},
    {CollKind::scatter,        "direct",        kAny,      kMany, false,  Ring::apart,  scatter_direct},
    {CollKind::all_to_all,     "direct",        kAny,      2,     false,  Ring::within, all_to_all_direct},
    {CollKind::all_to_all,     "bruck",         16 << 10,  kMany, false,  Ring::within, all_to_all_bruck},
    {CollKind::all_to_all,     "direct",        kAny,      kMany, false,  Ring::within, all_to_all_direct},
    {CollKind::all_gather_v,   "direct",        kAny,      kMany, false,  Ring::within, all_gather_v_direct},
    {CollKind::all_to_all_v,   "direct",        kAny,      kMany, false,  Ring::within, all_to_all_v_direct},
    {CollKind::barrier,        "dissemination", kAny,      kMany, false,  Ring::within, barrier_dissemination},
};
// clang-format on

// Returns whether partial sums in the buffer's own type lose precision: 16-bit floats would be rounded at every hop,
// and averages of small integers would wrap.
bool loses_in_partials(const CollCall& call) {
  switch (call.dtype) {
    case Dtype::bf16:
    case Dtype::f16:
      return true;
    case Dtype::i32:
    case Dtype::i8:
    case Dtype::u8:
      return call.redop == RedOp::avg;
    default:
      return false;
  }
}

bool can_run(const Algorithm& row, const CollCall& call, int size) {
  if (row.kind != call.kind || (row.in_pairs && (size & (size - 1)) != 0)) return false;
  return !(row.rounds_partials && (call.rank_order || loses_in_partials(call)));
}

}  // namespace

const Algorithm& choose_algorithm(const CollCall& call, int size, const std::string& wanted,
                                  const AlgorithmCosts& costs) {
  int64_t bytes = call_bytes(call, size);
  const Algorithm *fitting = nullptr, *fastest = nullptr;
  double least = 0;
  for (const Algorithm& row : kAlgorithms) {
    if (!can_run(row, call, size)) continue;
    if (!wanted.empty() && wanted == row.name) return row;
    if (fitting == nullptr && bytes <= row.max_bytes && size <= row.max_ranks) fitting = &row;
    const std::optional<double> seconds = costs.seconds(row.kind, row.name, size, static_cast<double>(bytes));
    if (seconds && (fastest == nullptr || *seconds < least)) fastest = &row, least = *seconds;
  }
  if (fastest != nullptr) {
    const std::optional<double> usual =
        fitting == nullptr ? std::nullopt : costs.seconds(call.kind, fitting->name, size, static_cast<double>(bytes));
    if (!usual || least < kWorthIt * *usual) return *fastest;
  }
  PRUN_CHECK(fitting != nullptr, describe(call));
  return *fitting;
}

bool divides(const CollCall& whole, const CollCall& part, int size, const std::string& wanted,
             const AlgorithmCosts& costs) {
  const auto in_order = [&](const CollCall& call) {
    return !choose_algorithm(call, size, wanted, costs).rounds_partials;
  };
  return !traits(whole.kind).reduces || (in_order(whole) && in_order(part));
}

std::string explain_algorithm(const CollCall& call, int size, const std::string& wanted, const AlgorithmCosts& costs) {
  const Algorithm& chosen = choose_algorithm(call, size, wanted, costs);
  if (wanted == chosen.name) return "asked for by name";
  const double bytes = static_cast<double>(call_bytes(call, size));
  if (const std::optional<double> seconds = costs.seconds(call.kind, chosen.name, size, bytes))
    return fmt::format("by calibration, {}", human_seconds(*seconds));
  std::string why = wanted.empty() ? "" : fmt::format("{} does not do it; ", wanted);
  int64_t above = 0;  // the largest limit of earlier rows, which serve smaller calls
  int rows = 0;
  for (const Algorithm& row : kAlgorithms) {
    if (row.kind != call.kind) continue;
    ++rows;
    if (&row < &chosen && can_run(row, call, size) && size <= row.max_ranks && row.max_bytes < kAny)
      above = std::max(above, row.max_bytes);
  }
  if (rows == 1) return why + "the only one";
  if (above > 0) why += fmt::format("more than {}, ", human_bytes(above));
  if (chosen.max_bytes < kAny) why += fmt::format("at most {}, ", human_bytes(chosen.max_bytes));
  return why + (chosen.max_ranks < kMany ? fmt::format("at most {} ranks", chosen.max_ranks) : "any number of ranks");
}

void check_algorithm_name(const std::string& wanted) {
  if (wanted.empty()) return;
  std::vector<std::string> names;
  for (const Algorithm& row : kAlgorithms) {
    if (wanted == row.name) return;
    if (std::find(names.begin(), names.end(), row.name) == names.end()) names.emplace_back(row.name);
  }
  std::string near = nearest_word(wanted, names);
  throw usage_error(fmt::format("comm.algorithm: unknown algorithm '{}' ({}one of: {})", wanted,
                                near.empty() ? "" : fmt::format("did you mean '{}'? ", near), join(names, ", ")));
}

std::byte* Scratch::get(int64_t bytes) {
  if (bytes <= static_cast<int64_t>(pages_.bytes())) return pages_.base();
  pages_ = {};  // free before allocating
  pages_ = sdk::Mapping::pages(static_cast<size_t>(round_up(bytes, 64 << 10)));
  if (!pages_) throw Error(Exit::out_of_memory, fmt::format("no {} for a collective", human_bytes(bytes)));
  return pages_.base();
}

void copy_block(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

void run_alone(const CollCall& call) {
  const int64_t count = traits(call.kind).vector ? call.counts[0] : call.count;
  // The product or average of one input is that input, unrounded.
  if (call.kind != CollKind::barrier) copy_block(call.recv, call.send, count * dtype_bytes(call.dtype));
}

}  // namespace prun
