// The files of a data source as one run of elements, shard after shard.
//
// Surprising fact: they are read by pread and not mapped, since a file that shrinks under a mapping kills the rank
// with SIGBUS, and one on a network gives no reason. Of thousands of shards a few are open at a time.
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

// The path as a message has it: from the current folder, where it lies below that.
std::string shown_path(const std::string& absolute, const std::string& current_folder);

class DataFiles {
 public:
  // Of those with the name `name` ("": tokens). Throws usage_error when one is gone or has another size than the
  // program was compiled for.
  DataFiles(const DataSource& source, std::string_view name);
  ~DataFiles();
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;

  Element element() const { return element_; }
  int64_t count() const { return files_.empty() ? 0 : files_.back().end; }  // elements
  // Elements [first, first + count) to `out`. Throws usage_error where a file is gone, ends early or cannot be read.
  // Threads may read at once.
  void read(int64_t first, int64_t count, void* out) const;
  struct Place {
    std::string path;
    int64_t element, byte;  // in that file, from its first element and from its first byte
  };
  Place place(int64_t element) const;  // for messages

 private:
  struct File {
    DataFile about;
    int64_t begin, end;  // of its elements among all
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
  mutable std::list<Opened> opened_;  // the latest first
};

// The header of a .npy file, versions 1 to 3 (numpy's format.py): element type and shape of the array that follows.
struct ArrayHeader {
  Element element = Element::f32;
  std::vector<int64_t> shape;
  int64_t skip_bytes = 0;  // where the numbers begin
};

// `begin`: the first kArrayHeaderMost bytes of the file, or all there are. Throws plan_error with what is wrong in
// words and, where there is one, the call of numpy that mends it.
inline constexpr int64_t kArrayHeaderMost = 4096;
ArrayHeader parse_array_header(std::string_view begin);

// What a file of token ids begins with: nothing (nanoGPT's, Megatron's .bin), or llm.c's header of 256 int32, which
// says what follows: magic, version, number of tokens.
inline constexpr int64_t kTokenHeaderBytes = 1024;

struct TokenHeader {
  Element element = Element::u16;
  int64_t tokens = 0;  // that the header counts
};

// `begin`: the first bytes of the file, kTokenHeaderBytes or all there are. None: the file has no such header. Throws
// plan_error, with what is wrong in words, where it has one of another version, or is another kind of file.
std::optional<TokenHeader> parse_token_header(std::string_view begin);

// Reads all of a plan's data once before launch. Throws plan_error with the file, the place of the first id that is too
// large, the size that is too small, and what to change. Where a source cannot hold such an id (bytes and 256 rows),
// nothing is read. Several threads read.
void check_data(const Plan& plan);

}  // namespace prun
