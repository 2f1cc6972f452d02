// A stack, and switches between stacks, for a thread of a block that waits for others.
#pragma once
#include <setjmp.h>

#include <cstddef>
#include <vector>

namespace substitute {

// Begins at `body`, which never returns. A fiber must run on the thread that started it.
class Fiber {
 public:
  Fiber() = default;  // the running one
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // Suspends this one, which is running, and resumes another. Returns when some fiber switches back to this one.
  void switch_to(Fiber& other);

 private:
  [[noreturn]] void enter();

  jmp_buf context_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  char* stack_ = nullptr;
  bool started_ = true;
};

}  // namespace substitute
