// Facts by which `prun diff` compares two plans: a rank's memory, its sent bytes by line, the order of ops and their
// waits, and the step at unit costs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

struct StreamFacts {
  std::vector<std::string> ops;    // "all_gather block0", with its microbatch, in program order
  std::vector<std::string> waits;  // for each op: the ops of other streams for which it waits, or ""
};

struct PlanFacts {
  std::string name;
  int ranks = 0, classes = 0;
  std::string mesh;
  int64_t arena_bytes = 0;                     // maximum over ranks
  std::map<std::string, int64_t> roles;        // the same maximum by role
  std::map<std::string, double> sent;          // bytes a step, mean over ranks: "all_gather over dp"
  std::map<std::string, double> sent_by_line;  // "lua/prun/strategies/zero3.lua:32, all_gather"
  int64_t ops = 0;                             // ops per step, of all ranks
  std::map<std::string, StreamFacts> streams;  // streams of rank 0
  double step = 0, busy = 0, exposed = 0;      // results at unit costs (draw/ideal_cluster.cc)
};

PlanFacts facts_of(const Job& job, const std::string& name);

// Differences in the order of ops of two plans, by stream.
struct OrderDiff {
  std::string stream;
  int only_first = 0, only_second = 0;  // ops missing in the other plan
  int moved = 0;                        // common ops at another position
  int other_waits = 0;                  // common ops in order with other waits
  std::vector<std::string> examples;    // at most three
  bool same() const { return only_first + only_second + moved + other_waits == 0; }
};

std::vector<OrderDiff> order_diffs(const PlanFacts& first, const PlanFacts& second);

}  // namespace prun
