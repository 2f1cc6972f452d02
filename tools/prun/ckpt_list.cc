// prun ckpt ls: lists the checkpoints of a folder by branch, each with its run and its parent. A damaged checkpoint
// gets a line of its own and hides no other.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/history.h"
#include "ckpt.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;
using checkpoint::CheckpointName;
using checkpoint::Lineage;

struct ListedCheckpoint {
  std::string path, name;
  CheckpointName at;
  std::optional<checkpoint::Index> index;
  std::string problem;  // the reason why its index cannot be read
  bool newest = false;
  bool parent_is_there = false;
};

std::vector<ListedCheckpoint> listed(const std::string& folder, const std::string& newest) {
  std::vector<ListedCheckpoint> all;
  for (const std::string& name : checkpoint::all_names(folder)) {
    ListedCheckpoint each{
        fmt::format("{}/{}", folder, name), name, *checkpoint::parse_checkpoint_name(name), {}, "", false, false};
    try {
      each.index = checkpoint::read_index(each.path);
      each.parent_is_there = checkpoint::parent_of(folder, each.index->lineage).has_value();
    } catch (const Error& error) {
      each.problem = error.message();
    }
    each.newest = each.path == newest;
    all.push_back(std::move(each));
  }
  const auto head = std::find_if(all.begin(), all.end(), [](const auto& each) { return each.newest; });
  const int64_t first = head == all.end() ? 0 : head->at.branch;
  const auto order = [&](const ListedCheckpoint& each) { return each.at.branch == first ? INT64_MAX : each.at.branch; };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return order(a) > order(b); });
  return all;
}

std::string parent_text(const ListedCheckpoint& each) {
  const Lineage& lineage = each.index->lineage;
  if (!lineage.known()) return "parent not known";
  if (!lineage.has_parent()) return "from the beginning";
  return fmt::format("after {}{}", lineage.parent.checkpoint, each.parent_is_there ? "" : " (gone)");
}

std::string run_text(const checkpoint::Index& index) {
  const Lineage& lineage = index.lineage;
  const std::string run = !lineage.run.empty() ? "run " + lineage.run
                          : lineage.known()    ? "no run, but an import"
                                               : "run and branch not known (an earlier prun)";
  return fmt::format("{}: {} on {}", run, index.plan, index.mesh);
}

std::string steps_text(const checkpoint::Index& index) {
  return fmt::format("step {} of {}", index.position.step, index.steps);
}

// Prints branches, below them runs, below them one line per checkpoint, in descending order of steps.
void print_tree(const std::vector<ListedCheckpoint>& all) {
  size_t name = 0, steps = 0, size = 0;
  for (const ListedCheckpoint& each : all) {
    name = std::max(name, each.name.size());
    if (!each.index) continue;
    steps = std::max(steps, steps_text(*each.index).size());
    size = std::max(size, human_bytes(ckpt_bytes(*each.index)).size());
  }
  int64_t branch = 0;
  std::string run;
  for (const ListedCheckpoint& each : all) {
    if (each.at.branch != branch) {
      fmt::print("branch {}\n", branch = each.at.branch);
      run.clear();
    }
    if (each.index && run_text(*each.index) != run) fmt::print("  {}\n", run = run_text(*each.index));
    fmt::print("  {} {:<{}}  ", each.newest ? '*' : ' ', each.name, name);
    if (each.index)
      fmt::print("{:<{}}  {:>{}}  {}\n", steps_text(*each.index), steps, human_bytes(ckpt_bytes(*each.index)), size,
                 parent_text(each));
    else
      fmt::print("damaged: {}\n", each.problem);
  }
}

}  // namespace

int ckpt_list(const CkptOptions& options, const std::string& folder) {
  std::string newest, remark;
  if (std::filesystem::exists(folder + "/index.json"))
    throw usage_error(
        fmt::format("{0} is a checkpoint: prun ckpt show {0} shows it, prun ckpt ls the folder above it", folder));
  if (checkpoint::all_names(folder).empty()) checkpoint::resolve(folder);  // throws if the folder is missing
  try {
    const checkpoint::Newest found = checkpoint::newest(folder);
    newest = found.checkpoint;
    remark = found.remark;
  } catch (const Error& error) {
    remark = error.message();
  }
  const std::vector<ListedCheckpoint> all = listed(folder, newest);
  if (!remark.empty()) fmt::print(stderr, "prun: {}\n", remark);
  if (!options.json) {
    print_tree(all);
    return 0;
  }
  for (const ListedCheckpoint& each : all) {
    Json row = each.index ? ckpt_summary(each.path, *each.index) : Json{{"checkpoint", each.path}};
    row["newest"] = each.newest;
    if (each.index && each.index->lineage.has_parent()) row["parent_is_there"] = each.parent_is_there;
    if (!each.index) row["problem"] = each.problem;
    fmt::print("{}\n", row.dump());
  }
  return 0;
}

}  // namespace prun
