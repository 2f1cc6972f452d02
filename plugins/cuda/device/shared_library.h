// A library of NVIDIA's that is loaded when one of its functions is first called. So the plugin loads on any machine
// and can report a missing library, and programs that only query sizes avoid the 0.2 s and half a gigabyte of cuBLASLt.
#pragma once
#include <string>

namespace prun::cuda {

class SharedLibrary {
 public:
  // `file`: the library of the major version whose headers this was built with, "libcublasLt.so.13"; `package`: the
  // package to install.
  constexpr SharedLibrary(const char* file, const char* package) : file_(file), package_(package) {}

  // Throws Failure(PRUN_ENOTSUP), with the fix, if the library is missing or lacks this function.
  void* find(const char* function) const;

 private:
  const char* file_;
  const char* package_;
};

}  // namespace prun::cuda

// Defines a function of a library's header that calls the library's own function.
#define PRUN_FORWARD(library, result, function, parameters, arguments)                          \
  result function parameters {                                                                  \
    static const auto forward = reinterpret_cast<decltype(&function)>(library.find(#function)); \
    return forward arguments;                                                                   \
  }

#define PRUN_TEXT_OF(x) #x
#define PRUN_TEXT(x) PRUN_TEXT_OF(x)
