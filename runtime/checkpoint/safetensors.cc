#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLargestHeader = 100'000'000;

Error damaged(const std::string& path, const std::string& what) {
  return Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, what));
}

constexpr std::string_view kDtypes[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "I8", "U8"};  // by Dtype
}  // namespace

namespace {
void advise(const std::byte* data, int64_t bytes, int advice) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t before = at % page;
  madvise(const_cast<std::byte*>(data - before), before + static_cast<uintptr_t>(bytes), advice);
}
}  // namespace

void populate(const std::byte* data, int64_t bytes) { advise(data, bytes, MADV_POPULATE_READ); }
void release(const std::byte* data, int64_t bytes) { advise(data, bytes, MADV_DONTNEED); }

std::string_view safetensors_dtype(Dtype dtype) { return kDtypes[static_cast<int>(dtype)]; }

int64_t dtype_bytes_of(const std::string& name) {
  for (int i = 0; i < std::ssize(kDtypes); ++i)
    if (kDtypes[i] == name) return dtype_bytes(static_cast<Dtype>(i));
  throw Error(Exit::checkpoint_invalid, fmt::format("prun has no element type {}", name));
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) {
    const int code = errno;
    if (fd >= 0) close(fd);
    throw damaged(path, strerror(code));
  }
  size_ = status.st_size;
  void* mapping = size_ > 0 ? mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (mapping == MAP_FAILED) throw damaged(path, size_ == 0 ? "the file is empty" : strerror(errno));
  madvise(mapping, static_cast<size_t>(size_), MADV_SEQUENTIAL);
  mapping_ = static_cast<const std::byte*>(mapping);
  read_header();
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(const_cast<std::byte*>(mapping_), static_cast<size_t>(size_));
}

void SafetensorsFile::read_header() {
  uint64_t length = 0;
  if (size_ < 8) throw damaged(path_, fmt::format("{} bytes are no safetensors file", size_));
  std::memcpy(&length, mapping_, 8);
  const int64_t room = size_ - 8;
  if (length > kLargestHeader || length > static_cast<uint64_t>(room))
    throw damaged(path_, fmt::format("a header of {} bytes in a file of {}", length, size_));
  const char* text = reinterpret_cast<const char*>(mapping_) + 8;
  const Json header = Json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) throw damaged(path_, "the header is not JSON");
  const std::byte* data = mapping_ + 8 + length;
  const int64_t data_bytes = room - static_cast<int64_t>(length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      read_offsets(entry.is_object() ? entry.value("DCP_SHARDING_INFO", "") : "");
      continue;
    }
    try {
      Tensor tensor;
      tensor.dtype = entry.at("dtype").get<std::string>();
      tensor.shape = entry.at("shape").get<Shape>();
      const auto range = entry.at("data_offsets").get<std::vector<int64_t>>();
      if (range.size() != 2 || range[0] < 0 || range[1] < range[0] || range[1] > data_bytes)
        throw damaged(path_, fmt::format("tensor {} ends at byte {} of {}: the file is cut", name,
                                         range.empty() ? 0 : range.back(), data_bytes));
      tensor.data = data + range[0];
      tensor.at = 8 + static_cast<int64_t>(length) + range[0];
      tensor.bytes = range[1] - range[0];
      tensors_.emplace(name, std::move(tensor));
    } catch (const Json::exception&) {
      throw damaged(path_, fmt::format("the header's entry for {} is damaged", name));
    }
  }
}

void SafetensorsFile::read_offsets(const std::string& text) {
  if (text.empty()) return;
  try {
    const Json places = Json::parse(text);
    for (const auto& [name, place] : places.items()) offsets_[name] = place.at("saved_offsets").get<Shape>();
  } catch (const Json::exception&) {
    throw damaged(path_, "its DCP_SHARDING_INFO is damaged");
  }
}

Dtype stored_dtype(const std::string& path, const std::string& name, const SafetensorsFile::Tensor& tensor) {
  for (const Dtype one : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64}) {
    if (safetensors_dtype(one) != tensor.dtype) continue;
    if (const int64_t needed = element_count(tensor.shape) * dtype_bytes(one); tensor.bytes != needed)
      throw damaged(path, fmt::format("{} has {} bytes of data, its shape {} needs {}", name, tensor.bytes,
                                      shape_text(tensor.shape), needed));
    return one;
  }
  throw damaged(path, fmt::format("{} is {}; prun reads F32, BF16, F16 and F64", name, tensor.dtype));
}

const SafetensorsFile::Tensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace prun::checkpoint
