#include "attention_lists.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "base/text.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Returns the rules of an attention with separate tensors: "causal, window 128".
std::string rules_of(const Attrs& attrs) {
  std::vector<std::string> rules;
  if (attrs.integer("causal") != 0) rules.emplace_back("causal");
  if (attrs.has("window")) rules.push_back(fmt::format("window {}", attrs.integer("window")));
  if (attrs.integer("spans") != 0) rules.emplace_back("documents");
  if (attrs.integer("masked") != 0) rules.emplace_back("mask");
  if (attrs.has("softcap")) rules.push_back(fmt::format("softcap {:g}", attrs.number("softcap")));
  return rules.empty() ? "all keys" : join(rules, ", ");
}

}  // namespace

std::string attention_lists(const Plan& plan) {
  struct Way {
    int64_t count = 0;
    Site first;
  };
  std::map<std::string, Way> ways;
  bool any = false;
  for (const Node& node : plan.graph.nodes) {
    std::string way;
    if (node.op == &ops::attention) {
      way = "a fused kernel over qkv";
    } else if (node.op == &ops::attend) {
      way = fmt::format("a fused kernel over q, k and v ({})", rules_of(node.attrs));
    } else if (node.op == &ops::softmax && node.attrs.has("reason")) {
      way = fmt::format("matmul, softmax and matmul, with the scores in memory: no fused kernel has {}",
                        node.attrs.text("reason"));
    } else {
      continue;
    }
    any = any || node.op != &ops::attention;
    Way& found = ways[way];
    if (found.count++ == 0) found.first = node.site;
  }
  std::string text;
  if (!any) return text;
  for (const auto& [way, found] : ways)
    text += fmt::format("{} by {} (first at {})\n", counted(found.count, ops::attention.name), way, found.first.text());
  return text;
}

}  // namespace prun
