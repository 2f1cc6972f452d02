// The files of a data source as one sequence of elements, shard after shard.
//
// Surprising fact: files are read with pread and not mapped, because a file that shrinks under a mapping kills the rank
// with SIGBUS, and a network file fails without a reason. A bounded number of shards is open at a time.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/element.h"
#include "ir/data_source.h"
#include "ir/plan.h"

namespace prun {

// Returns the path for messages: relative to the current folder if the file is below that folder.
std::string shown_path(const std::string& absolute, const std::string& current_folder);

class DataFiles {
 public:
  // Opens the files with the name `name` ("" = tokens). Throws usage_error if one is missing or its size differs from
  // the size that the program was compiled for.
  DataFiles(const DataSource& source, std::string_view name);
  ~DataFiles();
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;

  Element element() const { return element_; }
  int64_t count() const { return files_.empty() ? 0 : files_.back().end; }  // elements
  // Reads elements [first, first + count) to `out`. Throws usage_error if a file is missing, truncated or unreadable.
  // Thread-safe.
  void read(int64_t first, int64_t count, void* out) const;
  struct Place {
    std::string path;
    int64_t element, byte;  // offsets in that file, from its first element and from its first byte
  };
  Place place(int64_t element) const;  // for messages

 private:
  struct File {
    DataFile about;
    int64_t begin, end;  // range of its elements in the sequence
  };
  class Descriptor;
  struct Opened {
    const File* file;
    std::shared_ptr<const Descriptor> descriptor;
  };
  const File& file_with(int64_t element) const;
  std::shared_ptr<const Descriptor> opened(const File& file) const;
  void read_all(const File& file, int64_t offset, int64_t bytes, std::byte* out) const;

  Element element_ = Element::u8;
  std::vector<File> files_;
  mutable std::mutex mutex_;
  mutable std::list<Opened> opened_;  // most recently used first
};

// The header of a .npy file, versions 1 to 3 (numpy's format.py), or of a safetensors file with one tensor: element
// type and shape of the array that follows.
struct ArrayHeader {
  Element element = Element::f32;
  std::vector<int64_t> shape;
  int64_t skip_bytes = 0;  // offset of the data
};

// `begin`: the first kArrayHeaderMost bytes of the file, or the whole file. Throws plan_error with the problem and, if
// there is one, the numpy call that fixes it.
inline constexpr int64_t kArrayHeaderMost = 4096;
ArrayHeader parse_array_header(std::string_view begin);

// A file of token ids begins with no header (nanoGPT's, Megatron's .bin), or with llm.c's header of 256 int32: magic,
// version, number of tokens.
inline constexpr int64_t kTokenHeaderBytes = 1024;

struct TokenHeader {
  Element element = Element::u16;
  int64_t tokens = 0;  // as counted by the header
};

// `begin`: the first kTokenHeaderBytes bytes of the file, or the whole file. Returns nullopt if the file has no such
// header. Throws plan_error for an unknown version or another kind of file.
std::optional<TokenHeader> parse_token_header(std::string_view begin);

// Returns "text", "a Parquet file" or another kind of file that has no ids, by its first kTokenHeaderBytes bytes; ""
// for bytes that may be ids.
std::string_view kind_without_ids(std::string_view begin);

// Reads all of a plan's data once before launch, with several threads. Throws plan_error with the file, the position of
// the first id that is too large, the size that is too small, and the fix. Skips sources that cannot hold such an id
// (bytes and 256 rows).
void check_data(const Plan& plan);

}  // namespace prun
