#include "ir/data_source.h"

namespace prun {

std::string DataSource::words() const { return order == "epochs" ? kind + " in epochs" : kind; }

std::string DataSource::path() const { return files.empty() ? "" : files.front().path; }

int64_t DataSource::file_bytes() const {
  int64_t bytes = 0;
  for (const DataFile& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace prun
