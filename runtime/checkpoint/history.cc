#include "checkpoint/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string name;
  CheckpointName at;
};

bool is_whole(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / "index.json", error);
}

std::vector<Entry> entries(const std::string& folder) {
  std::vector<Entry> found;
  std::error_code error;
  for (const fs::directory_entry& each : fs::directory_iterator(folder, error)) {
    const std::string name = each.path().filename().string();
    if (const auto at = parse_checkpoint_name(name)) found.push_back({name, *at});
  }
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.at.step, a.at.branch) > std::pair(b.at.step, b.at.branch);
  });
  return found;
}

std::vector<Entry> whole_entries(const std::string& folder) {
  std::vector<Entry> found = entries(folder);
  std::erase_if(found, [&](const Entry& each) { return !is_whole(fs::path(folder) / each.name); });
  return found;
}

// Returns nullopt for a damaged index.
std::optional<Index> index_of(const std::string& checkpoint) {
  try {
    return read_index(checkpoint);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns "" if LATEST is missing or does not name a checkpoint.
std::string latest_name(const std::string& folder) {
  std::ifstream file(folder + "/" + kLatest);
  std::string name;
  if (!std::getline(file, name) || !parse_checkpoint_name(name)) return "";
  return name;
}

// A run that was killed during a commit leaves a checkpoint that LATEST does not name yet: a child of the checkpoint
// that LATEST names.
std::string head_of(const std::string& folder, const Entry& latest, const std::vector<Entry>& whole) {
  std::string head = latest.name;
  int64_t step = latest.at.step;
  for (auto each = whole.rbegin(); each != whole.rend(); ++each) {
    if (each->at.branch != latest.at.branch || each->at.step <= step) continue;
    const std::optional<Index> at = index_of(fmt::format("{}/{}", folder, head)),
                               later = index_of(fmt::format("{}/{}", folder, each->name));
    if (!at || !later || later->lineage.parent.id != at->id) continue;
    head = each->name;
    step = each->at.step;
  }
  return head;
}

// Returns the last checkpoint of each branch, by branch.
std::map<int64_t, Entry> heads_of(const std::vector<Entry>& whole) {
  std::map<int64_t, Entry> heads;
  for (const Entry& each : whole) heads.emplace(each.at.branch, each);
  return heads;
}

Error no_checkpoint(std::string what) { return Error(Exit::checkpoint_invalid, std::move(what)); }

Error nothing_whole(const std::string& folder, const std::string& latest) {
  const std::vector<Entry> all = entries(folder);
  if (!all.empty())
    return no_checkpoint(
        fmt::format("{}/{} has no index.json: the folder was copied in part, or files were removed; copy it "
                    "whole, or name another folder",
                    folder, all.front().name));
  if (!latest.empty())
    return no_checkpoint(
        fmt::format("{}/LATEST names {}, which is gone, and no other checkpoint is left: copy the folder "
                    "whole, or remove LATEST to begin anew",
                    folder, latest));
  return no_checkpoint(
      fmt::format("there is no checkpoint in {}: no index.json, and no folder step_N that has one", folder));
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Returns a relative path, which remains valid if both folders are moved together.
std::string relative_path(const std::string& from, const std::string& folder) {
  std::error_code error;
  const fs::path relative = fs::relative(from, folder, error);
  return error || relative.empty() ? fs::absolute(from).string() : relative.string();
}

// The runs and the ids of checkpoints that the added indices name, including parents.
struct Names {
  std::set<std::string> runs, ids;

  void add(const Index& index) {
    for (const std::string& run : {index.lineage.run, index.lineage.parent.run})
      if (!run.empty()) runs.insert(run);
    ids.insert(index.id);
    if (index.lineage.has_parent()) ids.insert(index.lineage.parent.id);
  }
  bool share(const Names& other) const {
    const auto common = [](const std::set<std::string>& a, const std::set<std::string>& b) {
      return std::any_of(a.begin(), a.end(), [&](const std::string& each) { return b.contains(each); });
    };
    return common(runs, other.runs) || common(ids, other.ids);
  }
};

}  // namespace

std::string checkpoint_name(int64_t step, int64_t branch) {
  return branch > 1 ? fmt::format("step_{:08}-{}", step, branch) : fmt::format("step_{:08}", step);
}

std::optional<CheckpointName> parse_checkpoint_name(std::string_view name) {
  CheckpointName at;
  const std::string text(name);
  if (std::sscanf(text.c_str(), "step_%" SCNd64 "-%" SCNd64, &at.step, &at.branch) < 1) return std::nullopt;
  return checkpoint_name(at.step, at.branch) == text ? std::optional(at) : std::nullopt;
}

bool is_used(const std::string& folder) { return !entries(folder).empty() || fs::exists(folder + "/" + kLatest); }

std::vector<std::string> whole_checkpoints(const std::string& folder) {
  std::vector<std::string> found;
  for (const Entry& each : whole_entries(folder)) found.push_back(folder + "/" + each.name);
  return found;
}

std::vector<std::string> all_names(const std::string& folder) {
  std::vector<std::string> found;
  for (const Entry& each : entries(folder)) found.push_back(each.name);
  return found;
}

Newest newest(const std::string& folder) {
  const std::vector<Entry> whole = whole_entries(folder);
  const std::string latest = latest_name(folder);
  if (whole.empty()) throw nothing_whole(folder, latest);
  const std::map<int64_t, Entry> heads = heads_of(whole);
  if (!latest.empty()) {
    const CheckpointName at = *parse_checkpoint_name(latest);
    if (is_whole(fs::path(folder) / latest)) return {folder + "/" + head_of(folder, {latest, at}, whole), ""};
    for (const Entry& each : whole)  // later ones may belong to another branch, written by an earlier prun
      if (each.at.branch == at.branch && each.at.step < at.step)
        return {folder + "/" + each.name,
                fmt::format("{0}/LATEST names {1}, which is gone: the newest is {2}, the last "
                            "one before it in its branch",
                            folder, latest, each.name)};
  } else if (heads.size() == 1) {
    return {folder + "/" + heads.begin()->second.name,
            fmt::format("{} has no LATEST: the newest is {}, the last one of its only branch", folder,
                        heads.begin()->second.name)};
  }
  std::vector<std::string> names;
  names.reserve(heads.size());
  for (const auto& [branch, head] : heads) names.push_back(head.name);
  throw no_checkpoint(
      fmt::format("{}/LATEST {}, so which checkpoint is the newest is not known: name one, as in {}/{} (the "
                  "branches end in {})",
                  folder, latest.empty() ? "is missing" : fmt::format("names {}, which is gone", latest), folder,
                  names.back(), join(names, ", ")));
}

std::string resolve(const std::string& path) {
  std::string folder = without_slashes(path);
  if (is_whole(folder) && fs::is_symlink(folder) && fs::path(folder).filename() == kBest)
    return (fs::path(folder).parent_path() / fs::read_symlink(folder)).string();
  if (is_whole(folder)) return folder;
  if (!fs::exists(folder)) throw no_checkpoint(fmt::format("there is no checkpoint at {}: no such folder", folder));
  const Newest found = newest(folder);
  static std::set<std::string> said;  // a command may resolve a folder several times
  if (!found.remark.empty() && said.insert(found.remark).second) fmt::print(stderr, "prun: {}\n", found.remark);
  return found.checkpoint;
}

std::optional<std::string> parent_of(const std::string& folder, const Lineage& lineage) {
  if (!lineage.has_parent()) return std::nullopt;
  const std::string path = (fs::path(folder) / lineage.parent.checkpoint).string();
  const std::optional<Index> index = is_whole(path) ? index_of(path) : std::nullopt;
  return index && index->id == lineage.parent.id ? std::optional(path) : std::nullopt;
}

std::optional<std::string> before(const std::string& checkpoint) {
  const fs::path path(without_slashes(checkpoint));
  const std::string folder = path.parent_path().string();
  if (const std::optional<Index> index = index_of(path.string()); index && index->lineage.known()) {
    if (!index->lineage.has_parent()) return std::nullopt;
    if (auto parent = parent_of(folder, index->lineage)) return parent;
  }
  const auto at = parse_checkpoint_name(path.filename().string());
  if (!at) return std::nullopt;
  for (const Entry& each : whole_entries(folder))
    if (each.at.branch == at->branch && each.at.step < at->step) return folder + "/" + each.name;
  return std::nullopt;
}

bool continues(const std::string& folder, const std::string& checkpoint) {
  Names there, here;
  for (const std::string& each : whole_checkpoints(folder))
    if (const std::optional<Index> index = index_of(each)) there.add(*index);
  std::set<std::string> seen;
  for (std::optional<std::string> each = checkpoint; each && seen.insert(*each).second; each = before(*each))
    if (const std::optional<Index> index = index_of(*each)) here.add(*index);
  return here.share(there);
}

bool is_directly_in(const std::string& checkpoint, const std::string& folder) {
  std::error_code error;
  const fs::path above = fs::path(without_slashes(checkpoint)).parent_path();
  return !folder.empty() && fs::equivalent(above.empty() ? "." : above, folder, error);
}

std::string name_in(const std::string& folder, const std::string& checkpoint, const std::string& id) {
  if (is_directly_in(checkpoint, folder)) return fs::path(without_slashes(checkpoint)).filename().string();
  for (const std::string& each : whole_checkpoints(folder))
    if (const std::optional<Index> index = index_of(each); index && index->id == id)
      return fs::path(each).filename().string();
  return "";
}

Lineage lineage_after(const std::string& folder, const std::string& run, const std::string& from) {
  const std::vector<Entry> all = entries(folder);
  int64_t highest = 0;
  for (const Entry& each : all) highest = std::max(highest, each.at.branch);
  Lineage lineage{run, highest + 1, {}};
  if (from.empty()) return lineage;
  const Index index = read_index(from);
  const std::string name = name_in(folder, from, index.id);
  lineage.parent = {name.empty() ? relative_path(from, folder) : name, index.lineage.run, index.position.step,
                    index.id};
  const auto at = parse_checkpoint_name(name);
  const auto later = [&](const Entry& each) { return each.at.branch == at->branch && each.at.step > at->step; };
  if (at && std::none_of(all.begin(), all.end(), later)) lineage.branch = at->branch;
  return lineage;
}

}  // namespace prun::checkpoint
