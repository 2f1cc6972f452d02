// An output file of the run: opened before anything is launched, changed only when the run begins, so that a run that
// fails earlier leaves the disk unchanged.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "watch/outlet.h"

namespace prun {

// Returns the descriptor that "-", /dev/stdout or /dev/stderr denotes, or -1. Opening these devices would overwrite a
// redirected file from its first byte.
int standard_stream(std::string_view path);

// Throws usage_error if `path` is a file with contents that do not begin with `begins`: a plan or data by a slip of the
// hand. `what`: "trace", with which the file would be replaced.
void refuse_other_contents(const std::string& path, std::string_view what, std::string_view begins);

class OutputFile {
 public:
  // `stream`: a descriptor to write to instead of the path; -1: none. `begins`: the first bytes of every file of this
  // kind; a file that begins otherwise is not replaced. Throws usage_error: "cannot write the trace to /x/y: No such
  // file or directory".
  OutputFile(const std::string& path, std::string_view what, int stream = -1, std::string_view begins = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // Call when the run begins: truncates the file to its first `keep` bytes.
  void begin(int64_t keep = 0);
  void write(std::string_view text);
  void flush();
  bool behind() const { return outlet_->behind(); }
  // Returns the error of the first failed write ("No space left on device"), or that a pipe's reader was too slow;
  // otherwise "".
  std::string failure() const;
  // Waits for the reader of a pipe as long as it reads.
  void finish(double patience_s);
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_.get(); }

 private:
  std::string path_, text_;  // text_: written, but not flushed
  Fd fd_;
  std::optional<Outlet> outlet_;
  bool stream_ = false, created_ = false, begun_ = false;
};

}  // namespace prun
