#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_whole.h"
#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLargestHeader = 100'000'000;

constexpr std::string_view kDtypes[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "I8", "U8"};  // by Dtype

std::optional<Dtype> find_dtype(const std::string& name) {
  const auto found = std::find(std::begin(kDtypes), std::end(kDtypes), name);
  if (found == std::end(kDtypes)) return std::nullopt;
  return static_cast<Dtype>(found - std::begin(kDtypes));
}

int open_to_read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0 || errno != EMFILE) return fd;
  // A checkpoint of many ranks has more files than the soft limit, which a process may raise.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

std::string_view safetensors_dtype(Dtype dtype) { return kDtypes[static_cast<int>(dtype)]; }

Dtype dtype_of(const std::string& name) {
  if (const std::optional<Dtype> dtype = find_dtype(name)) return *dtype;
  throw Error(Exit::checkpoint_invalid, fmt::format("prun has no element type {}", name));
}

DataFile::DataFile(const std::string& path) : path_(path), fd_(open_to_read(path)) {
  struct stat status {};
  if (fd_ >= 0 && fstat(fd_, &status) == 0) {
    size_ = status.st_size;
    posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // doubles the disk's readahead
    return;
  }
  const int code = errno;
  if (fd_ >= 0) close(fd_);
  throw invalid(path, strerror(code));
}

DataFile::~DataFile() { close(fd_); }

void DataFile::read_ahead(int64_t at, int64_t bytes) const { posix_fadvise(fd_, at, bytes, POSIX_FADV_WILLNEED); }

void DataFile::read(int64_t at, int64_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, to, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw invalid(path_, n < 0 ? strerror(errno)
                                 : fmt::format("the file ends at byte {}, and data should follow: it is cut", at));
    to += n;
    at += n;
    bytes -= n;
  }
}

SafetensorsFile::SafetensorsFile(const std::string& path) : data_(std::make_shared<DataFile>(path)) {
  const int64_t size = data_->size(), room = size - 8;
  if (size == 0) throw invalid(path, "the file is empty");
  if (size < 8) throw invalid(path, fmt::format("{} bytes are not a safetensors file", size));
  uint64_t length = 0;
  data_->read(0, 8, reinterpret_cast<std::byte*>(&length));
  if (length > kLargestHeader || length > static_cast<uint64_t>(room))
    throw invalid(path, fmt::format("a header of {} bytes in a file of {}", length, size));
  std::string text(length, '\0');
  data_->read(8, static_cast<int64_t>(length), reinterpret_cast<std::byte*>(text.data()));
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object()) throw invalid(path, "the header is not JSON");
  const int64_t data_bytes = room - static_cast<int64_t>(length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      const auto places = entry.find("DCP_SHARDING_INFO");
      if (places != entry.end() && places->is_string()) read_offsets(places->get<std::string>());
      continue;
    }
    try {
      Tensor tensor;
      tensor.dtype = entry.at("dtype").get<std::string>();
      tensor.shape = json_wholes(entry.at("shape"));
      const auto range = json_wholes(entry.at("data_offsets"));
      if (range.size() != 2 || range[0] < 0 || range[1] < range[0] || range[1] > data_bytes)
        throw invalid(path, fmt::format("tensor {} ends at byte {} of {}: the file is cut", name,
                                        range.empty() ? 0 : range.back(), data_bytes));
      tensor.at = 8 + static_cast<int64_t>(length) + range[0];
      tensor.bytes = range[1] - range[0];
      tensors_.emplace(name, std::move(tensor));
    } catch (const Json::exception&) {
      throw invalid(path, fmt::format("the header's entry for {} is damaged", name));
    }
  }
}

void SafetensorsFile::read_offsets(const std::string& text) {
  if (text.empty()) return;
  try {
    const Json places = Json::parse(text);
    for (const auto& [name, place] : places.items()) offsets_[name] = json_wholes(place.at("saved_offsets"));
  } catch (const Json::exception&) {
    throw invalid(data_->path(), "its DCP_SHARDING_INFO is damaged");
  }
}

Dtype stored_dtype(const std::string& path, const std::string& name, const SafetensorsFile::Tensor& tensor) {
  const std::optional<Dtype> dtype = find_dtype(tensor.dtype);
  if (!dtype || *dtype > Dtype::f16)
    throw invalid(path, fmt::format("{} is {}; prun reads F32, BF16, F16 and F64", name, tensor.dtype));
  if (const int64_t needed = element_count(tensor.shape) * dtype_bytes(*dtype); tensor.bytes != needed)
    throw invalid(path, fmt::format("{} has {} bytes of data, its shape {} needs {}", name, tensor.bytes,
                                    shape_text(tensor.shape), needed));
  return *dtype;
}

const SafetensorsFile::Tensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace prun::checkpoint
