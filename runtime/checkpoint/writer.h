// Writes a rank's part of checkpoints overlapped with the steps, one at a time; rank 0 commits them.
//
// Ranks synchronize in the file system: each writes a manifest after its files are synced, and rank 0 waits for all
// manifests before it writes the index and renames the folder. A checkpoint is therefore whole or has another name.
#pragma once
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/history.h"
#include "checkpoint/index.h"
#include "checkpoint/write_files.h"
#include "ir/program.h"

namespace prun::checkpoint {

// Options of a folder in the memory of one host, instead of one that all ranks share. A rank's part is safe once
// another host has a copy, and a commit is complete when the parts of all ranks are safe.
struct KeptApart {
  // Copies files of a commit to another host.
  std::function<void(const std::string& commit, const std::vector<std::string>& files)> copy;
  std::function<void(int64_t step)> kept;  // reports that this rank's part is safe
  std::function<int64_t()> committed;      // the newest step for which all ranks have reported this
  bool clears = false;                     // this rank removes superseded commits for all ranks that share the folder
};

// The moment of a save.
struct Moment {
  int64_t step = 0, skipped = 0;  // steps done, and those of them that updated nothing
  Progress progress;
};

// A save that this rank could not make.
struct SaveFailure {
  std::string what;  // the error
  int errno_value = 0;
  int64_t bytes = 0;       // size of the whole checkpoint
  int64_t free_bytes = 0;  // on the folder's disk; -1 = unknown

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(what, errno_value, bytes, free_bytes);
  }
};

// Lets ranks agree to skip a save and continue the job.
struct Abandoning {
  std::function<void(int64_t step, const SaveFailure&)> abandon;  // informs the other ranks; idempotent per step
  std::function<bool(int64_t step)> abandoned;                    // whether any rank has abandoned it
};

struct WriterOptions {
  std::string folder;          // "" = nothing is written
  int keep = 0;                // whole checkpoints retained per branch; 0 = unlimited
  std::set<std::string> read;  // names in the folder that are never removed
  bool marks_best = true;      // the link `best` names the best checkpoint, which is never removed
  Lineage lineage;             // lineage of the first checkpoint
  int threads = 1;             // writer threads per rank; each writes one file
  std::string attempt;         // identical on all ranks, different for each start; identifies files of a dead run
  std::string program;         // SHA-256 of the job
  Numerics numerics;           // Job::numerics
  DataIdentity data;
  std::function<std::string(int64_t step)> cursor;  // of a feed, after `step` steps; null = no feed
  std::optional<KeptApart> apart;
  std::optional<Abandoning> abandoning;  // nullopt = a failed save is an error
  int64_t bytes = 0;                     // size of a whole checkpoint
  int wait_s = 60;                       // seconds that rank 0 waits for the first file of another rank
  // Reports the progress of a save. Called by the writing thread, so it must not block.
  enum class Save { begun, written, committed, failed };  // failed: abandoned, or the job ends
  std::function<void(int64_t step, Save)> told;
};

class Writer {
 public:
  // All arguments outlive the writer.
  Writer(WriterOptions options, const Program& program, int rank, std::function<bool()> cancelled);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Throws the error of the save in progress. Called between steps, so that a full disk is reported before the next
  // save.
  void check();
  // Waits until the save in progress is synced, on rank 0 until it is committed. Throws its error.
  void wait();
  // Begins to write the state. `data` returns a tensor's
  // elements in host memory, which remain unchanged until wait() returns. `last`: no save follows, so a failure is an
  // error.
  void start(const Moment& moment, bool last, std::function<const std::byte*(TensorId)> data);

 private:
  std::vector<FileToWrite> files(const std::function<const std::byte*(TensorId)>& data) const;
  // Writes this rank's files into `folder` and returns their names, the manifest's last.
  std::vector<std::string> write(const std::string& folder, int64_t step,
                                 const std::function<const std::byte*(TensorId)>& data);
  void save(int64_t step, const std::function<const std::byte*(TensorId)>& data);
  void failed(int64_t step, bool last);  // called in an exception handler
  void abandon(int64_t step, const Error& error);
  bool abandoned(int64_t step) const;
  void commit_all(int64_t step);
  void commit_apart(int64_t step, const std::function<const std::byte*(TensorId)>& data);
  Index index_of(int64_t step) const;  // without tensors
  std::string name_of(int64_t step) const { return checkpoint_name(step, lineage_.branch); }
  bool is_there(int64_t step) const;  // the newest checkpoint is of this branch, and no step has run since
  std::string manifest(const std::string& staging, int rank) const;

  WriterOptions options_;
  const Program& program_;
  int rank_;
  std::function<bool()> cancelled_;
  Lineage lineage_;  // lineage of the checkpoint being written
  Moment moment_;    // its moment
  std::thread thread_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace prun::checkpoint
