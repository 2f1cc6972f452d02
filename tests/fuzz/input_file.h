// An input as a file, for readers that take a path.
#pragma once
#include <string>
#include <string_view>

namespace prun::fuzz {

// In memory, closed with its owner.
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

// A folder of this process below /dev/shm, removed at its end; a file in it is written anew.
const std::string& input_folder();
void write_input(const std::string& name, std::string_view bytes);

}  // namespace prun::fuzz
