#include "data/data_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"

namespace prun {
namespace {

constexpr size_t kMostOpen = 32;  // a thread reads one file at a time, and a sample spans at most two

void require_size(const DataFile& file, int64_t bytes) {
  if (bytes == file.bytes) return;
  throw usage_error(
      fmt::format("data file {} has {} bytes, the plan was compiled for {}: is it the same file on every node?",
                  file.path, bytes, file.bytes));
}

Error unreadable(const DataFile& file) {
  return usage_error(fmt::format("data file {}: {}", file.path, strerror(errno)));
}

}  // namespace

class DataFiles::Descriptor {
 public:
  explicit Descriptor(const DataFile& file) : number(open(file.path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number < 0) throw unreadable(file);
  }
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int number;
};

std::string shown_path(const std::string& absolute, const std::string& current_folder) {
  const std::filesystem::path path = std::filesystem::path(absolute).lexically_normal();
  const std::filesystem::path below = path.lexically_relative(current_folder);
  return below.empty() || *below.begin() == ".." ? path.string() : below.string();
}

DataFiles::DataFiles(const DataSource& source, std::string_view name) {
  for (const DataFile& file : source.files) {
    if (file.name != name) continue;
    const std::optional<Element> element = parse_element(file.element);
    PRUN_CHECK(element.has_value(), file.element);
    element_ = *element;
    struct stat info = {};
    if (stat(file.path.c_str(), &info) != 0) throw unreadable(file);
    require_size(file, info.st_size);
    const int64_t begin = count();
    files_.push_back({file, begin, begin + (file.bytes - file.skip_bytes) / element_width(element_)});
  }
}

DataFiles::~DataFiles() = default;

const DataFiles::File& DataFiles::file_with(int64_t element) const {
  PRUN_CHECK(element >= 0 && element < count(), fmt::format("element {} of {}", element, count()));
  return *std::upper_bound(files_.begin(), files_.end(), element,
                           [](int64_t wanted, const File& file) { return wanted < file.end; });
}

std::shared_ptr<const DataFiles::Descriptor> DataFiles::opened(const File& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& one) { return one.file == &file; });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
  } else {
    auto descriptor = std::make_shared<const Descriptor>(file.about);
    struct stat info = {};
    if (fstat(descriptor->number, &info) != 0) throw unreadable(file.about);
    require_size(file.about, info.st_size);
    opened_.push_front({&file, std::move(descriptor)});
    if (opened_.size() > kMostOpen) opened_.pop_back();
  }
  return opened_.front().descriptor;
}

void DataFiles::read(int64_t first, int64_t count, void* out) const {
  const int64_t width = element_width(element_);
  std::byte* to = static_cast<std::byte*>(out);
  while (count > 0) {
    const File& file = file_with(first);
    const int64_t here = std::min(count, file.end - first);
    read_all(file, file.about.skip_bytes + (first - file.begin) * width, here * width, to);
    first += here, count -= here, to += here * width;
  }
}

void DataFiles::read_all(const File& file, int64_t offset, int64_t bytes, std::byte* out) const {
  const std::shared_ptr<const Descriptor> descriptor = opened(file);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor->number, out, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable(file.about);
    if (got == 0)
      throw usage_error(
          fmt::format("data file {} ends at byte {}, and had {} bytes when the job began: it has been cut or written "
                      "anew",
                      file.about.path, offset, file.about.bytes));
    offset += got, bytes -= got, out += got;
  }
}

DataFiles::Place DataFiles::place(int64_t element) const {
  const File& file = file_with(element);
  const int64_t inside = element - file.begin;
  std::error_code error;
  return {shown_path(file.about.path, std::filesystem::current_path(error)), inside,
          file.about.skip_bytes + inside * element_width(element_)};
}

}  // namespace prun
