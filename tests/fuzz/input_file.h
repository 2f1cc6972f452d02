// An input as a file, for readers that take a path.
#pragma once
#include <string>
#include <string_view>

namespace prun::fuzz {

// A file in memory, closed by the destructor.
class InputFile {
 public:
  explicit InputFile(std::string_view bytes);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::string path() const;

 private:
  int fd_;
};

// Returns a folder of this process in /dev/shm, removed at exit; callers overwrite its files.
const std::string& input_folder();
void write_input(const std::string& name, std::string_view bytes);

}  // namespace prun::fuzz
