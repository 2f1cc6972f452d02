// What `prun diff` compares two plans by: what a rank holds, what it sends and from which line, in which order ops run
// and what they wait for, and the step at unit costs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

struct StreamFacts {
  std::vector<std::string> ops;    // "all_gather block0", with its microbatch, in their order
  std::vector<std::string> waits;  // of each: the ops of other streams that it waits for, or ""
};

struct PlanFacts {
  std::string name;
  int ranks = 0, classes = 0;
  std::string mesh;
  int64_t arena_bytes = 0;                     // of the rank with the most
  std::map<std::string, int64_t> roles;        // how that divides
  std::map<std::string, double> sent;          // bytes a step, mean over ranks: "all_gather over dp"
  std::map<std::string, double> sent_by_line;  // "lua/prun/strategies/zero3.lua:32, all_gather"
  int64_t ops = 0;                             // of a step, all ranks
  std::map<std::string, StreamFacts> streams;  // of rank 0
  double step = 0, busy = 0, exposed = 0;      // at unit costs (draw/ideal_cluster.cc)
};

PlanFacts facts_of(const Job& job, const std::string& name);

// In what the order of ops of two plans differs, stream by stream, in words.
struct OrderDiff {
  std::string stream;
  int only_first = 0, only_second = 0;  // ops that the other has not
  int moved = 0;                        // that both have, elsewhere in the order
  int other_waits = 0;                  // in the same place, that wait for other ops
  std::vector<std::string> examples;    // at most three
  bool same() const { return only_first + only_second + moved + other_waits == 0; }
};

std::vector<OrderDiff> order_diffs(const PlanFacts& first, const PlanFacts& second);

}  // namespace prun
