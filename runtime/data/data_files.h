// The files of a data source as one run of elements, shard after shard.
//
// Surprising fact: they are read by pread and not mapped, since a file that shrinks under a mapping kills the rank
// with SIGBUS, and one on a network gives no reason.
#pragma once
#include <memory>
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
  // Elements [first, first + count) to `out`. Throws usage_error where a file ends early or cannot be read. Threads may
  // read at once.
  void read(int64_t first, int64_t count, void* out) const;
  struct Place {
    std::string path;
    int64_t element, byte;  // in that file, from its first element and from its first byte
  };
  Place place(int64_t element) const;  // for messages

 private:
  struct File {
    int descriptor;
    int64_t begin, end;  // of its elements among all
    const DataFile* about;
  };
  const File& file_with(int64_t element) const;
  void read_all(const File& file, int64_t offset, int64_t bytes, std::byte* out) const;

  DataSource source_;
  Element element_ = Element::u8;
  std::vector<File> files_;
};

}  // namespace prun
