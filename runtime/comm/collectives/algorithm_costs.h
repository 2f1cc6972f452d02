// What the core's algorithms take where they were measured (prun calibrate); decides between them in place of the
// table's limits: steps(n) · step + moved(n) · S / bandwidth, the formula of prun sim with each algorithm's own
// figures.
//
// Travels as text, a line an algorithm: "socket all_reduce direct 1.2e-05 65536:1.1e+09 4194304:2e+09", seconds of a
// step and bytes/s by the bytes that a rank moves. Members of a group must have the same text.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/curve.h"
#include "ir/coll_kind.h"

namespace prun {

// What an algorithm does among n ranks: how many steps follow each other, and which part of the call's bytes a rank
// moves.
struct AlgorithmWork {
  double steps = 1, moved = 1;
};
// Nothing for kinds that have one algorithm, and for unknown names.
std::optional<AlgorithmWork> algorithm_work(CollKind kind, std::string_view name, int ranks);
// The names of a kind's algorithms that algorithm_work knows; none where there is nothing to choose.
std::vector<std::string> compared_algorithms(CollKind kind);

class AlgorithmCosts {
 public:
  AlgorithmCosts() = default;
  // The lines of one transport. Throws usage_error for others than described above.
  AlgorithmCosts(const std::string& text, const std::string& transport);
  bool empty() const { return rates_.empty(); }
  // Of a call of so many bytes (call_bytes); nothing where the algorithm was not measured.
  std::optional<double> seconds(CollKind kind, std::string_view name, int ranks, double bytes) const;

 private:
  struct Rates {
    double step_s = 0;
    Curve bandwidth;
  };
  std::map<std::pair<CollKind, std::string>, Rates> rates_;
};

}  // namespace prun
