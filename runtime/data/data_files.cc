#include "data/data_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace prun {
namespace {

int open_file(const DataFile& file) {
  const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw usage_error(fmt::format("data file {}: {}", file.path, strerror(errno)));
  struct stat info = {};
  if (fstat(descriptor, &info) == 0 && info.st_size == file.bytes) return descriptor;
  close(descriptor);
  throw usage_error(
      fmt::format("data file {} has {} bytes, the plan was compiled for {}: is it the same file on every node?",
                  file.path, static_cast<int64_t>(info.st_size), file.bytes));
}

}  // namespace

std::string shown_path(const std::string& absolute, const std::string& current_folder) {
  const std::filesystem::path path = std::filesystem::path(absolute).lexically_normal();
  const std::filesystem::path below = path.lexically_relative(current_folder);
  return below.empty() || *below.begin() == ".." ? path.string() : below.string();
}

DataFiles::DataFiles(const DataSource& source, std::string_view name) : source_(source) {
  try {
    for (const DataFile& file : source_.files) {
      if (file.name != name) continue;
      const std::optional<Element> element = parse_element(file.element);
      PRUN_CHECK(element.has_value(), file.element);
      element_ = *element;
      const int64_t begin = count(), elements = (file.bytes - file.skip_bytes) / element_width(element_);
      files_.push_back({open_file(file), begin, begin + elements, &file});
    }
  } catch (...) {
    for (const File& file : files_) close(file.descriptor);
    throw;
  }
}

DataFiles::~DataFiles() {
  for (const File& file : files_) close(file.descriptor);
}

const DataFiles::File& DataFiles::file_with(int64_t element) const {
  PRUN_CHECK(element >= 0 && element < count(), fmt::format("element {} of {}", element, count()));
  return *std::upper_bound(files_.begin(), files_.end(), element,
                           [](int64_t wanted, const File& file) { return wanted < file.end; });
}

void DataFiles::read(int64_t first, int64_t count, void* out) const {
  const int64_t width = element_width(element_);
  std::byte* to = static_cast<std::byte*>(out);
  while (count > 0) {
    const File& file = file_with(first);
    const int64_t here = std::min(count, file.end - first);
    read_all(file, file.about->skip_bytes + (first - file.begin) * width, here * width, to);
    first += here, count -= here, to += here * width;
  }
}

void DataFiles::read_all(const File& file, int64_t offset, int64_t bytes, std::byte* out) const {
  while (bytes > 0) {
    const ssize_t got = pread(file.descriptor, out, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw usage_error(fmt::format("data file {}: {}", file.about->path, strerror(errno)));
    if (got == 0)
      throw usage_error(
          fmt::format("data file {} ends at byte {}, and had {} bytes when the job began: it has been cut "
                      "or written anew",
                      file.about->path, offset, file.about->bytes));
    offset += got, bytes -= got, out += got;
  }
}

DataFiles::Place DataFiles::place(int64_t element) const {
  const File& file = file_with(element);
  const int64_t inside = element - file.begin;
  std::error_code error;
  return {shown_path(file.about->path, std::filesystem::current_path(error)), inside,
          file.about->skip_bytes + inside * element_width(element_)};
}

}  // namespace prun
