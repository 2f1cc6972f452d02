// Commits in the memory of several hosts: each host has some of the files, some files are on two hosts, and together
// the hosts have all of them. A host has one folder per commit, step_00000040.RUN, with files and manifests of some
// ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "ir/program.h"

namespace prun::checkpoint {

struct KeptCommit {
  std::string name;  // step_00000040.RUN
  int64_t ranks = 0;
  RunPosition position;
  std::vector<int> held;  // ranks whose part this node holds

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(name, ranks, position, held);
  }
};

std::string kept_name(int64_t step, const std::string& run);
std::string manifest_name(int rank);  // written last, so that its presence implies the rank's other files
std::vector<KeptCommit> kept_commits(const std::string& folder);
// Returns the newest commit for which every rank's part is on some host.
std::optional<KeptCommit> newest_whole(const std::vector<std::vector<KeptCommit>>& hosts);
// Removes the commits of other runs and those of this run before `name`.
void remove_kept_before(const std::string& folder, const std::string& name, const std::string& run);

// Returns the index with the tensors of all ranks, whose manifests are in `commit`. Throws checkpoint_invalid.
Index whole_index(const std::string& commit);
// Adds the names of the files that hold the rank's state.
void add_files_of(const Index& index, const Program& program, int rank, std::set<std::string>& files);
// Replaces the index of `commit` by one of the files that exist there.
void write_index_of_present(const std::string& commit, Index index);

}  // namespace prun::checkpoint
