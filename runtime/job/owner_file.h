// A file that exists as long as its owner does. It locks a folder on file systems without flock.
#pragma once
#include <string>

namespace prun {

class OwnerFile {
 public:
  // Creates the file and replaces the file of a process of this host that has ended. Throws usage_error (`what`, then
  // the owner) if the file belongs to another process.
  OwnerFile(std::string path, const std::string& what);
  ~OwnerFile();  // removes it, in the process that created it
  OwnerFile(const OwnerFile&) = delete;
  OwnerFile& operator=(const OwnerFile&) = delete;

 private:
  std::string path_;
  int pid_;
};

}  // namespace prun
