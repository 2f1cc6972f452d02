// A file that exists as long as its owner does: the lock of folders on file systems without flock.
#pragma once
#include <string>

namespace prun {

class OwnerFile {
 public:
  // Makes the file. A file whose process has ended on this host is replaced. Throws usage_error, with `what` before the
  // owner, where another process has it, and checkpoint_write.
  OwnerFile(std::string path, const std::string& what);
  ~OwnerFile();  // removes it, in the process that made it
  OwnerFile(const OwnerFile&) = delete;
  OwnerFile& operator=(const OwnerFile&) = delete;

 private:
  std::string path_;
  int pid_;
};

}  // namespace prun
