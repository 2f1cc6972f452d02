// Writes a file in sections: the caller fills and hashes a section while a thread writes the previous ones.
//
//     caller   fill 0 | fill 1 | fill 2 | fill 3 (waits until 0 is written) ..
//     thread            write 0 | write 1 | write 2 | write 3 ..
//
// Both sleep while they wait.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/sha256.h"
#include "base/thread_annotations.h"

namespace prun::checkpoint {

// A file that is written sequentially, past the page cache if the file system allows it: the checkpoint is not read
// again soon, and copies into the cache would take cores from the steps.
class OutputFile {
 public:
  static constexpr int64_t kAlign = 4096;  // alignment of memory and file offsets for direct I/O

  // Creates the file and reserves its space, so that a full disk is reported at once. Throws checkpoint_write.
  OutputFile(const std::string& path, int64_t bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Appends bytes: a multiple of kAlign, except for the last ones, after which `data` has capacity up to the next
  // multiple. `data` is aligned to kAlign. Throws checkpoint_write.
  void write(std::byte* data, int64_t bytes);
  void sync();  // fsync

 private:
  void write_through_cache();

  std::string path_;
  int fd_;
  bool direct_ = true;
  int64_t bytes_, written_ = 0;
};

class SectionPipeline {
 public:
  // `bytes`: length of the file, which outlives the pipeline. `sums`: finish() returns the SHA-256 of each piece.
  SectionPipeline(OutputFile& file, int64_t bytes, bool sums);
  ~SectionPipeline();
  SectionPipeline(const SectionPipeline&) = delete;
  SectionPipeline& operator=(const SectionPipeline&) = delete;

  // Returns the buffer for the file's next bytes and its capacity, which is at least 1. Throws the error of an earlier
  // write.
  std::byte* room(int64_t* bytes);
  void add(int64_t bytes);                      // the caller has filled this many bytes
  void add_of_piece(int64_t bytes, bool last);  // adds bytes of a piece; `last`: they end the piece
  // Waits until all bytes are written, but not for the disk. Returns the SHA-256 of the pieces in their order.
  std::vector<std::string> finish();

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Section {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
  };
  static constexpr int kSections = 3;

  void pass();
  void write_sections();

  OutputFile& file_;
  const int64_t section_bytes_;
  const bool sums_wanted_;
  std::array<Section, kSections> ring_;
  std::unique_ptr<Sha256> sum_;  // hash of the current piece
  std::vector<std::string> sums_;
  Section* filling_ = nullptr;
  Mutex mutex_;
  std::condition_variable changed_;
  // Numbers of sections; section i is ring_[i % kSections].
  int64_t passed_ PRUN_GUARDED_BY(mutex_) = 0, written_ PRUN_GUARDED_BY(mutex_) = 0;
  bool over_ PRUN_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ PRUN_GUARDED_BY(mutex_);
  std::thread writing_;  // only for files of more than one section
};

}  // namespace prun::checkpoint
