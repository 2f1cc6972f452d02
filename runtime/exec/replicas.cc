// All ranks of a group have gathered the same fingerprints, so all report the same error.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "exec/host_ops.h"

namespace prun {
namespace {

// Returns "rank 3", or "ranks 0, 1, 2 and 5 more".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMost = 4;
  std::vector<std::string> names;
  for (const int rank : ranks)
    if (names.size() < kMost) names.push_back(std::to_string(rank));
  const std::string more = ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "";
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ") + more;
}

class RequireSame final : public Kernel {
 public:
  RequireSame(const RankMemory& memory, const Op& op)
      : memory_(memory),
        gathered_(static_cast<const int64_t*>(memory.data(op.reads[0]))),
        axis_(op.attrs.text("axis")),
        names_(nlohmann::json::parse(op.attrs.text("tensors")).get<std::vector<std::string>>()),
        members_(memory.program->mesh.group(axis_, memory.rank)) {}

  void run() override {
    const int64_t n = std::ssize(names_);
    for (int64_t i = 0; i < n; ++i) {
      if (names_[i].empty()) continue;  // expected to differ along this axis
      std::map<int64_t, std::vector<int>> holders;
      for (int64_t m = 0; m < std::ssize(members_); ++m) holders[gathered_[m * n + i]].push_back(members_[m]);
      if (holders.size() > 1) report(names_[i], holders);
    }
  }

 private:
  [[noreturn]] void report(const std::string& tensor, const std::map<int64_t, std::vector<int>>& holders) const {
    std::vector<std::vector<int>> groups;
    for (const auto& [print, ranks] : holders) groups.push_back(ranks);
    // Smallest group first; among equal ones the group with the lowest rank last, because the others differ from it.
    std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() < b.size() : a.front() > b.front();
    });
    std::vector<std::string> others;
    for (size_t g = 1; g < groups.size(); ++g) others.push_back(ranks_text(groups[g]));
    const bool alone = groups.front().size() == 1;
    throw Error(Exit::corrupt_link,
                fmt::format("{} hold{} another '{}' than {} along {} after step {}: the program keeps them alike, so "
                            "data was changed on its way or in memory, or ranks compute differently "
                            "(--check-replicas 1 looks after every step, --check-replicas 0 never)",
                            ranks_text(groups.front()), alone ? "s" : "", tensor, join(others, " and "), axis_,
                            memory_.table->step - 1));
  }

  RankMemory memory_;
  const int64_t* gathered_;
  std::string axis_;
  std::vector<std::string> names_;
  std::vector<int> members_;
};

}  // namespace

std::unique_ptr<Kernel> make_require_same(const RankMemory& memory, const Op& op) {
  return std::make_unique<RequireSame>(memory, op);
}

}  // namespace prun
