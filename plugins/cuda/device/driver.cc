// Surprising fact: the driver has two parts that containers install separately. The kernel module is the host's; the
// NVIDIA container toolkit puts the library libcuda.so.1 into a container on request.
#include <dlfcn.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "probe.h"

namespace prun::cuda {
namespace {

namespace fs = std::filesystem;

// Returns 580.65.06 from "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
std::string version_in(std::istream& text) {
  for (std::string word; text >> word;) {
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0 && word.find('.') != std::string::npos) return word;
  }
  return "";
}

int entries(const fs::path& directory) {
  std::error_code error;
  int n = 0;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) ++n;
  return n;
}

}  // namespace

Driver find_driver() {
  Driver driver;
  if (void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); library != nullptr) {
    driver.library = true;
    dlclose(library);
  }
  std::ifstream version("/proc/driver/nvidia/version");
  driver.module = version.good();
  driver.version = version_in(version);
  driver.gpus = entries("/proc/driver/nvidia/gpus");
  return driver;
}

}  // namespace prun::cuda
