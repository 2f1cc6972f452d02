// Measured costs of the core's algorithms (prun calibrate); they replace the table's limits in the choice among them.
// The time is steps(n) · step + moved(n) · S / bandwidth, the formula of prun sim with each algorithm's own parameters.
//
// Ranks exchange the costs as text, one line per algorithm: "socket all_reduce direct 1.2e-05 65536:1.1e+09
// 4194304:2e+09" (seconds per step, then bytes/s by the bytes that a rank moves). All members of a group must have the
// same text.
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

// The work of an algorithm among n ranks: sequential steps, and the bytes that a rank moves over the call's bytes.
struct AlgorithmWork {
  double steps = 1, moved = 1;
};
// Returns nullopt for kinds with one algorithm and for unknown names.
std::optional<AlgorithmWork> algorithm_work(CollKind kind, std::string_view name, int ranks);
// Returns the algorithms of a kind that algorithm_work covers; none if there is no choice.
std::vector<std::string> compared_algorithms(CollKind kind);

class AlgorithmCosts {
 public:
  AlgorithmCosts() = default;
  // Parses the lines of one transport. Throws usage_error for malformed ones.
  AlgorithmCosts(const std::string& text, const std::string& transport);
  bool empty() const { return rates_.empty(); }
  // Returns the time of a call with that many bytes (call_bytes); nullopt if the algorithm was not measured.
  std::optional<double> seconds(CollKind kind, std::string_view name, int ranks, double bytes) const;

 private:
  struct Rates {
    double step_s = 0;
    Curve bandwidth;
  };
  std::map<std::pair<CollKind, std::string>, Rates> rates_;
};

}  // namespace prun
