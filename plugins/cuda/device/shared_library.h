// A library of NVIDIA's that is loaded when the first of its functions is called. So the plugin loads everywhere and
// can say what is missing, and programs that only ask it for sizes are spared the 0.2 s and half a gigabyte of
// cuBLASLt.
#pragma once
#include <string>

namespace prun::cuda {

class SharedLibrary {
 public:
  // `file`: "libcublasLt.so.13", of the major version whose headers this was built with; `package`: what has it.
  constexpr SharedLibrary(const char* file, const char* package) : file_(file), package_(package) {}

  // Throws Failure(PRUN_ENOTSUP): the library that is missing or lacks this function, and what to do.
  void* find(const char* function) const;

 private:
  const char* file_;
  const char* package_;
};

}  // namespace prun::cuda

// Defines a function of a library's header: it calls the library's own.
#define PRUN_FORWARD(library, result, function, parameters, arguments)                          \
  result function parameters {                                                                  \
    static const auto forward = reinterpret_cast<decltype(&function)>(library.find(#function)); \
    return forward arguments;                                                                   \
  }

#define PRUN_TEXT_OF(x) #x
#define PRUN_TEXT(x) PRUN_TEXT_OF(x)
