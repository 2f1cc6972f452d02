// The atlas as parity cases: the plan of each command in plans/atlas/README.md computes the same as on one rank, that
// is, without the sizes of axes.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "tests/parity/product_cases.h"

namespace prun::test {

std::vector<ProductCase> atlas_cases() {
  static const std::regex command("`(prun (plans/atlas/\\S+\\.lua) --nproc (\\d+)((?: --set \\S+=\\S+)*))`");
  static const std::regex setting("--set (\\S+)=(\\S+)");
  std::vector<ProductCase> cases;
  std::ifstream page(PRUN_SOURCE_DIR "/plans/atlas/README.md");
  std::smatch row;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("|") || !std::regex_search(line, row, command)) continue;
    ProductCase one;
    one.strategy = row[1];
    one.plan = row[2];
    one.ranks = std::stoi(row[3]);
    one.yardstick = {{"dtype", "f64"}, {"steps", "5"}};
    const std::string words = row[4];
    for (std::sregex_iterator word(words.begin(), words.end(), setting), end; word != end; ++word)
      one.yardstick[(*word)[1]] = (*word)[2];
    one.settings = one.yardstick;
    for (const char* axis : {"pp", "replicate", "dp", "cp", "ep", "tp"}) one.yardstick.erase(axis);
    // Losses do not depend on the microbatches, except for the load-balancing loss of experts.
    if (line.find("model=moe") == std::string::npos) one.yardstick["micro"] = "1";
    one.some = true;
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace prun::test
