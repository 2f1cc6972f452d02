// An output file of the run: opened before anything is launched, truncated only when the run begins. A run that does
// not begin leaves the disk as it was.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace prun {

class OutputFile {
 public:
  // Throws usage_error: "cannot write the trace to /x/y: No such file or directory".
  OutputFile(const std::string& path, std::string_view what);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void begin();  // the run has begun: what was in the file is replaced
  void write(std::string_view text);
  void flush();
  // What the first failed write said ("No space left on device"), else "".
  const std::string& failure() const { return failure_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_, failure_;
  std::FILE* file_ = nullptr;
  bool created_ = false, begun_ = false;
};

}  // namespace prun
