// An output file of the run: opened before anything is launched, changed only when the run begins. A run that does
// not begin leaves the disk as it was.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "watch/outlet.h"

namespace prun {

// The descriptor that "-", /dev/stdout and /dev/stderr mean, or -1. Opening these devices would not do where they are
// files: it begins at the first byte, over what stands there.
int standard_stream(std::string_view path);

class OutputFile {
 public:
  // `stream`: a descriptor to write to instead of the path; -1: none. Throws usage_error: "cannot write the trace to
  // /x/y: No such file or directory".
  OutputFile(const std::string& path, std::string_view what, int stream = -1);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // The run has begun: what was in the file is replaced, but for its first `keep` bytes.
  void begin(int64_t keep = 0);
  void write(std::string_view text);
  void flush();
  // What the first failed write said ("No space left on device"), or that a pipe's reader did not keep up; else "".
  std::string failure() const;
  // Waits for the reader of a pipe, as long as it reads.
  void finish(double patience_s);
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_.get(); }

 private:
  std::string path_, text_;  // written, but not flushed
  Fd fd_;
  std::optional<Outlet> outlet_;
  bool stream_ = false, created_ = false, begun_ = false;
};

}  // namespace prun
