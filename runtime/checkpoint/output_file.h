// A file that is written from front to back, past the page cache where the file system lets one: what a run keeps is
// not read again soon, and copies into the cache would take the cores from the steps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace prun::checkpoint {

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

}  // namespace prun::checkpoint
