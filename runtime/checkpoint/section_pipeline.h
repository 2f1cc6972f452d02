// A file's bytes on their way to the disk: one thread fills sections, one sums them, one writes them, each a section
// behind the other. All sleep while they have nothing to do.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "checkpoint/output_file.h"
#include "checkpoint/sha256.h"

namespace prun::checkpoint {

class SectionPipeline {
 public:
  // The file is as long as it says; it outlives the pipeline.
  SectionPipeline(OutputFile& file, int64_t bytes);
  ~SectionPipeline();
  SectionPipeline(const SectionPipeline&) = delete;
  SectionPipeline& operator=(const SectionPipeline&) = delete;

  // Where the next bytes of the file go, and how many there is room for: at least one section that is aligned by
  // OutputFile::kAlign, less what was added to it. Throws what went wrong with those before.
  std::byte* room(int64_t* bytes);
  // So many bytes are there. `summed`: they are part of a piece; `last`: its last.
  void add(int64_t bytes, bool summed, bool last);
  // Waits until all is written, not yet on the disk; SHA-256 of the pieces, in their order.
  std::vector<std::string> finish();

 private:
  struct Part {
    int64_t begin, bytes;
    bool last;
  };
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Section {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
    std::vector<Part> parts;
  };
  static constexpr int kSections = 4;

  void pass();
  void work(int64_t& done, const std::function<void(Section&)>& use);
  void sum(const Section& section);

  OutputFile& file_;
  const int64_t section_bytes_;
  std::array<Section, kSections> ring_;
  std::unique_ptr<Sha256> sum_;
  std::vector<std::string> sums_;
  Mutex mutex_;
  std::condition_variable changed_;
  int64_t passed_ PRUN_GUARDED_BY(mutex_) = 0, summed_ PRUN_GUARDED_BY(mutex_) = 0,
                  written_ PRUN_GUARDED_BY(mutex_) = 0;  // sections; i lies in ring_[i % kSections]
  bool over_ PRUN_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ PRUN_GUARDED_BY(mutex_);
  Section* filling_ = nullptr;
  std::thread summing_, writing_;  // of files of more than one section
};

}  // namespace prun::checkpoint
