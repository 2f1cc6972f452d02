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
#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kChunk = int64_t{4} << 20;  // bytes that are hashed and written at once
constexpr uint64_t kLargestHeader = 100'000'000;

Error damaged(const std::string& path, const std::string& what) {
  return Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, what));
}

std::string header_of(const std::vector<PieceToWrite>& pieces, bool sharded) {
  Json header, places = Json::object();
  for (const PieceToWrite& piece : pieces) places[piece.name] = {{"saved_offsets", piece.offset}};
  header["__metadata__"] = {{"format", "pt"}};
  if (sharded) header["__metadata__"].update({{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", places.dump()}});
  int64_t at = 0;
  for (const PieceToWrite& piece : pieces) {
    const int64_t end = at + element_count(piece.shape) * dtype_bytes(piece.dtype);
    header[piece.name] = {
        {"dtype", safetensors_dtype(piece.dtype)}, {"shape", piece.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(std::ssize(text), 8)), ' ');
  return text;
}

class Output {
 public:
  explicit Output(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) throw write_failed(path, errno);
  }
  ~Output() { close(fd_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, from, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw write_failed(path_, n < 0 ? errno : EIO);
      from += n;
      bytes -= static_cast<size_t>(n);
      // The disk begins at once, while the next chunk is made.
      sync_file_range(fd_, written_, n, SYNC_FILE_RANGE_WRITE);
      written_ += n;
    }
  }
  void sync() {
    if (fsync(fd_) != 0) throw write_failed(path_, errno);
  }

 private:
  std::string path_;
  int fd_;
  int64_t written_ = 0;
};

}  // namespace

namespace {
constexpr std::string_view kDtypes[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "I8", "U8"};  // by Dtype
}

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

std::vector<std::string> write_safetensors(const std::string& path, const std::vector<PieceToWrite>& pieces,
                                           const std::function<bool()>& cancelled, bool sharded) {
  Output output(path);
  const std::string header = header_of(pieces, sharded);
  const uint64_t length = header.size();  // little-endian, as all machines that prun runs on
  output.write(&length, sizeof length);
  output.write(header.data(), header.size());
  std::vector<std::byte> chunk(kChunk);
  std::vector<std::string> sums;
  for (const PieceToWrite& piece : pieces) {
    Sha256 sum;
    const int64_t size = dtype_bytes(piece.dtype), most = kChunk / size, all = element_count(piece.shape);
    for (int64_t first = 0; first < all; first += most) {
      if (cancelled()) throw Error(Exit::checkpoint_write, "the job ended while a checkpoint was written");
      const int64_t count = std::min(most, all - first);
      piece.fill(chunk.data(), first, count);
      sum.add(chunk.data(), static_cast<size_t>(count * size));
      output.write(chunk.data(), static_cast<size_t>(count * size));
    }
    sums.push_back(sum.hex());
  }
  output.sync();
  return sums;
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
