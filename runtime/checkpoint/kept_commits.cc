#include "checkpoint/kept_commits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "ir/state.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestForm = "rank_%d.json%n";

// Returns -1 if the name is not that of a manifest.
int rank_of_manifest(const std::string& name) {
  int rank = -1, read = 0;
  return std::sscanf(name.c_str(), kManifestForm, &rank, &read) == 1 && read == std::ssize(name) ? rank : -1;
}

// Returns whether this node has the files that the manifest names. It may have the manifest alone: a rank that resumes
// fetches the manifests of all ranks, but only the files that it needs.
bool has_files(const std::string& commit, const std::string& manifest) {
  for (const auto& [name, tensor] : parse_manifest(read_file(manifest), manifest))
    for (const SavedPiece& piece : tensor.pieces)
      if (!fs::exists(commit + "/" + piece.file)) return false;
  return true;
}

bool overlap(const Box& box, const SavedPiece& piece) {
  for (size_t d = 0; d < piece.shape.size(); ++d)
    if (box.offset[d] >= piece.offset[d] + piece.shape[d] || piece.offset[d] >= box.offset[d] + box.shape[d])
      return false;
  return true;
}

}  // namespace

std::string kept_name(int64_t step, const std::string& run) { return fmt::format("step_{:08}.{}", step, run); }

std::string manifest_name(int rank) { return fmt::format("rank_{:05}.json", rank); }

std::vector<KeptCommit> kept_commits(const std::string& folder) {
  std::vector<KeptCommit> all;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) try {
      const Index index = read_index(entry.path().string());
      KeptCommit commit{entry.path().filename().string(), index.ranks, index.position, {}};
      for (const fs::directory_entry& file : fs::directory_iterator(entry.path()))
        if (const int rank = rank_of_manifest(file.path().filename().string());
            rank >= 0 && has_files(entry.path().string(), file.path().string()))
          commit.held.push_back(rank);
      all.push_back(std::move(commit));
    } catch (const std::exception&) {  // an incomplete commit
    }
  return all;
}

std::optional<KeptCommit> newest_whole(const std::vector<std::vector<KeptCommit>>& hosts) {
  std::map<std::string, std::pair<KeptCommit, std::set<int>>> all;
  for (const std::vector<KeptCommit>& host : hosts)
    for (const KeptCommit& commit : host) {
      auto& [first, held] = all[commit.name];
      if (first.name.empty()) first = commit;
      held.insert(commit.held.begin(), commit.held.end());
    }
  std::optional<KeptCommit> newest;
  for (const auto& [name, commit] : all)
    if (std::ssize(commit.second) == commit.first.ranks &&
        (!newest || commit.first.position.step > newest->position.step))
      newest = commit.first;
  return newest;
}

void remove_kept_before(const std::string& folder, const std::string& name, const std::string& run) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string each = entry.path().filename().string();
    if (!each.ends_with("." + run) || each < name) fs::remove_all(entry.path(), ignored);
  }
}

Index whole_index(const std::string& commit) {
  Index index = read_index(commit);
  index.tensors.clear();
  for (int rank = 0; rank < index.ranks; ++rank) {
    const std::string path = commit + "/" + manifest_name(rank);
    add_manifest(index, parse_manifest(read_file(path), path));
  }
  return index;
}

void add_files_of(const Index& index, const Program& program, int rank, std::set<std::string>& files) {
  for (const StateTensor& state : program.state) {
    if (is_of_base(program, state)) continue;
    const auto saved = index.tensors.find(state.name);
    if (saved == index.tensors.end()) continue;
    const bool of_each_rank = saved->second.shape.size() > state.shape.size();
    for (const Box& held : held_boxes(program, state, rank)) {
      const Box box = of_each_rank ? in_saved(program, state, rank, held) : held;
      for (const SavedPiece& piece : saved->second.pieces)
        if (overlap(box, piece)) files.insert(piece.file);
    }
  }
}

void write_index_of_present(const std::string& commit, Index index) {
  for (auto& [name, tensor] : index.tensors)
    std::erase_if(tensor.pieces, [&](const SavedPiece& piece) { return !fs::exists(commit + "/" + piece.file); });
  write_file(commit + "/index.json.new", index_text(index));
  fs::rename(commit + "/index.json.new", commit + "/index.json");
}

}  // namespace prun::checkpoint
