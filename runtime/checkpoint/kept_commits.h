// Commits in the memory of several hosts: each has a part of the files, and together they have all of them, some twice.
// A host's folder has one folder a commit, step_00000040.RUN, with the files and manifests of some of its ranks.
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
std::string manifest_name(int rank);  // the last of a rank's files: it is there once the others are
std::vector<KeptCommit> kept_commits(const std::string& folder);
// Of what all hosts have: the newest whose every rank's part is somewhere.
std::optional<KeptCommit> newest_whole(const std::vector<std::vector<KeptCommit>>& hosts);
// Removes those of other runs and those of this one before `name`.
void remove_kept_before(const std::string& folder, const std::string& name, const std::string& run);

// The index with the tensors of all ranks, whose manifests are in `commit`. Throws checkpoint_invalid.
Index whole_index(const std::string& commit);
// Files that rank's state is read from.
void add_files_of(const Index& index, const Program& program, int rank, std::set<std::string>& files);
// Replaces the index of `commit` by one of the files that are there.
void write_index_of_present(const std::string& commit, Index index);

}  // namespace prun::checkpoint
