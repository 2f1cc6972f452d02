// The files of a data source as one run of elements, shard after shard.
//
// Surprising fact: they are read by pread and not mapped, since a file that shrinks under a mapping kills the rank
// with SIGBUS, and one on a network gives no reason. Of thousands of shards a few are open at a time.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "data/element.h"
#include "ir/data_source.h"

namespace prun {

// The path as a message has it: from the current folder, where it lies below that.
std::string shown_path(const std::string& absolute, const std::string& current_folder);

class DataFiles {
 public:
  // Of those with the name `name` ("": tokens). Throws usage_error when one is gone or has another size than the
  // program was compiled for.
  DataFiles(const DataSource& source, std::string_view name);
  ~DataFiles();
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;

  Element element() const { return element_; }
  int64_t count() const { return files_.empty() ? 0 : files_.back().end; }  // elements
  // Elements [first, first + count) to `out`. Throws usage_error where a file is gone, ends early or cannot be read.
  // Threads may read at once.
  void read(int64_t first, int64_t count, void* out) const;
  struct Place {
    std::string path;
    int64_t element, byte;  // in that file, from its first element and from its first byte
  };
  Place place(int64_t element) const;  // for messages

 private:
  struct File {
    DataFile about;
    int64_t begin, end;  // of its elements among all
  };
  class Descriptor;
  struct Opened {
    const File* file;
    std::shared_ptr<const Descriptor> descriptor;
  };
  const File& file_with(int64_t element) const;
  std::shared_ptr<const Descriptor> opened(const File& file) const;
  void read_all(const File& file, int64_t offset, int64_t bytes, std::byte* out) const;

  Element element_ = Element::u8;
  std::vector<File> files_;
  mutable std::mutex mutex_;
  mutable std::list<Opened> opened_;  // the latest first
};

}  // namespace prun
