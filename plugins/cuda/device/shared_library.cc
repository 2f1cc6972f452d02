#include "shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "failure.h"

namespace prun::cuda {

// Returns the address of a function. dlopen counts references: after the first call it finds the loaded library. It
// also searches this plugin's own RUNPATH.
void* SharedLibrary::find(const char* function) const {
  void* library = dlopen(file_, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Failure(PRUN_ENOTSUP, fmt::format("{}; install {}, or name its folder in LD_LIBRARY_PATH",
                                            why != nullptr ? why : file_, package_));
  }
  void* found = dlsym(library, function);
  if (found == nullptr)
    throw Failure(PRUN_ENOTSUP, fmt::format("{} has no {}: it is older than the {} that prun was built with", file_,
                                            function, package_));
  return found;
}

}  // namespace prun::cuda
