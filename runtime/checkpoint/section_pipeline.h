// A file's bytes on their way to the disk: who fills a section also sums it, while a thread writes those before it.
// Both sleep while they have nothing to do.
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

// A file that is written from front to back, past the page cache where the file system allows it: the checkpoint is not
// read again soon, and copies into the cache would take cores from the steps.
class OutputFile {
 public:
  static constexpr int64_t kAlign = 4096;  // of memory and places in the file, for writes past the cache

  // Makes the file and reserves its room, so that a disk that is too full is told at once. Throws checkpoint_write.
  OutputFile(const std::string& path, int64_t bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // The next bytes: a multiple of kAlign, but for the last ones, which are followed by room for the rest of it. `data`
  // is aligned by kAlign. Throws checkpoint_write.
  void write(std::byte* data, int64_t bytes);
  void sync();  // waits for the disk

 private:
  void write_through_cache();

  std::string path_;
  int fd_;
  bool direct_ = true;
  int64_t bytes_, written_ = 0;
};

class SectionPipeline {
 public:
  // The file is as long as it says; it outlives the pipeline. `sums`: of each piece its SHA-256 is wanted.
  SectionPipeline(OutputFile& file, int64_t bytes, bool sums);
  ~SectionPipeline();
  SectionPipeline(const SectionPipeline&) = delete;
  SectionPipeline& operator=(const SectionPipeline&) = delete;

  // Where the next bytes of the file go, and how many there is room for: never none. Throws what went wrong with those
  // before.
  std::byte* room(int64_t* bytes);
  void add(int64_t bytes);                      // so many bytes are there
  void add_of_piece(int64_t bytes, bool last);  // and are part of a piece; `last`: its last
  // Waits until all is written, not yet on the disk; SHA-256 of the pieces, in their order.
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
  std::unique_ptr<Sha256> sum_;  // of the piece that is being filled
  std::vector<std::string> sums_;
  Section* filling_ = nullptr;
  Mutex mutex_;
  std::condition_variable changed_;
  // Sections; i lies in ring_[i % kSections].
  int64_t passed_ PRUN_GUARDED_BY(mutex_) = 0, written_ PRUN_GUARDED_BY(mutex_) = 0;
  bool over_ PRUN_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ PRUN_GUARDED_BY(mutex_);
  std::thread writing_;  // of files of more than one section
};

}  // namespace prun::checkpoint
