// Writes a rank's part of checkpoints behind the steps, one at a time; rank 0 commits them.
//
// Ranks meet in the file system: each leaves a manifest when its files are on the disk, and rank 0 waits for all of
// them before it writes the index and renames the folder. So a checkpoint is whole or has another name, whoever dies.
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

// Where the folder is not one that all ranks share, but the memory of one host: there each rank's part is safe once
// another host has it, too, and a commit stands when that holds for all of them.
struct KeptApart {
  std::function<void(const std::string& commit, const std::vector<std::string>& files)> copy;  // to that host
  std::function<void(int64_t step)> kept;  // tells that this rank's part is safe
  std::function<int64_t()> committed;      // the newest step of which all ranks have told it
  bool clears = false;                     // of the ranks that share the folder, this one removes what is superseded
};

// A save that this rank could not make.
struct SaveFailure {
  std::string what;  // the error
  int errno_value = 0;
  int64_t bytes = 0;       // that the whole checkpoint takes
  int64_t free_bytes = 0;  // on the folder's disk, -1: it does not say

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(what, errno_value, bytes, free_bytes);
  }
};

// How ranks agree that a save is made by none of them, and the job goes on.
struct Abandoning {
  std::function<void(int64_t step, const SaveFailure&)> abandon;  // tells the others; the same step twice is one
  std::function<bool(int64_t step)> abandoned;                    // by any rank
};

struct WriterOptions {
  std::string folder;          // "" = nothing is written
  int keep = 0;                // whole checkpoints retained per branch; 0 = unlimited
  std::set<std::string> read;  // names in the folder that are never removed
  Lineage lineage;             // lineage of the first checkpoint
  int threads = 1;             // writer threads per rank; each writes one file
  std::string attempt;         // identical on all ranks, different for each start; identifies files of a dead run
  std::string program;         // SHA-256 of the job
  Numerics numerics;           // Job::numerics
  DataIdentity data;
  std::optional<KeptApart> apart;
  std::optional<Abandoning> abandoning;  // nothing: a save that cannot be made is an error
  int64_t bytes = 0;                     // of a whole checkpoint
  int wait_s = 60;                       // how long rank 0 waits for the first file of another
  // What a save has come to, for who watches: called by the thread that writes, so it must not block.
  enum class Save { begun, written, committed, failed };  // failed: abandoned, or the job ends
  std::function<void(int64_t step, Save)> told;
};

class Writer {
 public:
  // All arguments outlive the writer. `data`: a tensor's elements in the host's memory. Throws checkpoint_write where
  // the folder cannot be written.
  Writer(WriterOptions options, const Program& program, int rank, std::function<bool()> cancelled);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Throws what has gone wrong so far. Called between steps, so that a full disk is told before the next checkpoint.
  void check();
  // Waits until what was started is on the disk, on rank 0 until it is committed. Throws what went wrong.
  void wait();
  // Begins to write the state after `step` steps, of which `skipped` updated nothing; `data` stays as it is until
  // wait() returns. `last`: no save follows, so that this one is an error where it cannot be made.
  void start(int64_t step, int64_t skipped, bool last, std::function<const std::byte*(TensorId)> data);

 private:
  std::vector<FileToWrite> files(const std::function<const std::byte*(TensorId)>& data) const;
  // Into `folder`; returns the files' names, the manifest's last.
  std::vector<std::string> write(const std::string& folder, int64_t step,
                                 const std::function<const std::byte*(TensorId)>& data);
  void save(int64_t step, const std::function<const std::byte*(TensorId)>& data);
  void failed(int64_t step, bool last);  // in a handler
  void abandon(int64_t step, const Error& error);
  bool abandoned(int64_t step) const;
  void commit_all(int64_t step);
  void commit_apart(int64_t step, const std::function<const std::byte*(TensorId)>& data);
  Index index_of(int64_t step) const;  // without tensors
  std::string name_of(int64_t step) const { return checkpoint_name(step, lineage_.branch); }
  bool is_there(int64_t step) const;  // the newest checkpoint is of this branch and no step was done since
  std::string manifest(const std::string& staging, int rank) const;

  WriterOptions options_;
  const Program& program_;
  int rank_;
  std::function<bool()> cancelled_;
  Lineage lineage_;      // lineage of the checkpoint being written
  int64_t skipped_ = 0;  // skipped steps at its step
  std::thread thread_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace prun::checkpoint
