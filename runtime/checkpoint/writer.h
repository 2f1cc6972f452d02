// Writes a rank's part of checkpoints behind the steps, one at a time; rank 0 commits them.
//
// Ranks meet in the file system: each leaves a manifest when its files are on the disk, and rank 0 waits for all of
// them before it writes the index and renames the folder. So a checkpoint is whole or has another name, whoever dies.
#pragma once
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/write_files.h"
#include "ir/program.h"

namespace prun::checkpoint {

struct WriterOptions {
  std::string folder;   // "": nothing is written
  int keep = 0;         // whole checkpoints that stay; 0: all
  int threads = 1;      // that a rank writes with, a file each
  std::string run;      // the same on all ranks, another one in each run: tells what a dead run left behind
  std::string program;  // SHA-256 of the job
  std::string kernels;  // Device::numerics
  int wait_s = 60;      // how long rank 0 waits for the first file of another
  // What a save has come to, for who watches: called by the thread that writes, so it must not block.
  enum class Save { begun, written, committed, failed };
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
  // Begins to write the state after `step` steps; `data` stays as it is until wait() returns.
  void start(int64_t step, std::function<const std::byte*(TensorId)> data);

 private:
  std::vector<FileToWrite> files(const std::function<const std::byte*(TensorId)>& data) const;
  void write(int64_t step, const std::function<const std::byte*(TensorId)>& data);
  void commit_all(int64_t step);
  std::string manifest(const std::string& staging, int rank) const;

  WriterOptions options_;
  const Program& program_;
  int rank_;
  std::function<bool()> cancelled_;
  std::thread thread_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace prun::checkpoint
