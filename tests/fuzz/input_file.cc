#include "fuzz/input_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace prun::fuzz {

InputFile::InputFile(std::string_view bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
  if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != std::ssize(bytes)) std::abort();
}

InputFile::~InputFile() { close(fd_); }

std::string InputFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

const std::string& input_folder() {
  struct Folder {
    Folder() {
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() {
      std::error_code none;
      std::filesystem::remove_all(path, none);
    }
    // Not in /dev/shm, where concurrent tests look for prun's leftovers.
    std::string path = std::filesystem::temp_directory_path() / "prun-fuzz-XXXXXX";
  };
  static const Folder folder;
  return folder.path;
}

void write_input(const std::string& name, std::string_view bytes) {
  std::ofstream(input_folder() + "/" + name, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

}  // namespace prun::fuzz
