// The file of --metrics. "-" is standard output; an empty file, a pipe or a device is written; a file with rows goes on
// in a run that resumes, from the step that it resumes from, and is otherwise left alone.
#pragma once
#include <cstdint>
#include <string>

#include "watch/output_file.h"

namespace prun {

struct MetricsSettings {
  std::string path;        // --metrics
  bool overwrite = false;  // --overwrite
  bool resumes = false;    // --resume was given, whether there was a checkpoint or not
};

// Throws usage_error for options that do not go together.
void check_metrics_options(const MetricsSettings& settings, const std::string& checkpoints);

class MetricsFile {
 public:
  // `first_step`: steps that were done before this run. Changes nothing yet. Throws usage_error where the file cannot
  // be written, has rows that nobody said what to do with, or something else than rows, or where another run writes it.
  MetricsFile(const MetricsSettings& settings, int64_t first_step);
  // Drops the rows of steps that come again.
  void begin();
  OutputFile& output() { return output_; }
  const OutputFile& output() const { return output_; }
  // What the user should know of the rows that were there; "": nothing.
  const std::string& remark() const { return remark_; }

 private:
  void read_rows(int64_t first_step);

  OutputFile output_;
  int64_t keep_ = 0;   // bytes that stay
  std::string after_;  // rows that stay, behind one that goes
  std::string remark_;
};

}  // namespace prun
