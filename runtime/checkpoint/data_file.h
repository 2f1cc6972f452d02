// A file that is read at any place, by any thread, without being mapped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace prun::checkpoint {

class DataFile {
 public:
  explicit DataFile(const std::string& path);  // throws checkpoint_invalid
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  // Asks the system for them, and does not wait.
  void read_ahead(int64_t at, int64_t bytes) const;
  // Throws checkpoint_invalid where the file ends before.
  void read(int64_t at, int64_t bytes, std::byte* to) const;
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace prun::checkpoint
