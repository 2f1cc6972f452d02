// The file of --metrics. "-" is standard output. An empty file, a pipe or a device is written. A file with rows is
// continued by a run that resumes, from the step of its checkpoint; otherwise only --overwrite replaces it.
#pragma once
#include <cstdint>
#include <string>

#include "watch/output_file.h"

namespace prun {

struct MetricsSettings {
  std::string path;        // --metrics
  bool overwrite = false;  // --overwrite
  bool resumes = false;    // --resume was given, even if there was no checkpoint
};

// Throws usage_error for options that do not go together.
void check_metrics_options(const MetricsSettings& settings, const std::string& checkpoints);

class MetricsFile {
 public:
  // `first_step`: steps done before this run. Changes nothing yet. Throws usage_error if the file cannot be written,
  // has rows without --resume or --overwrite, has other content, or is being written by another run.
  MetricsFile(const MetricsSettings& settings, int64_t first_step);
  // Drops the rows of repeated steps.
  void begin();
  OutputFile& output() { return output_; }
  const OutputFile& output() const { return output_; }
  // Returns a message about existing rows; "": none.
  const std::string& remark() const { return remark_; }

 private:
  void read_rows(int64_t first_step);

  OutputFile output_;
  int64_t keep_ = 0;   // bytes kept at the beginning
  std::string after_;  // rows kept after the first dropped one
  std::string remark_;
};

}  // namespace prun
