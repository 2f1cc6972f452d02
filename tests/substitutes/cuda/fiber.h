// A stack to run on, and switching between them: what a thread of a block needs that waits for the others.
#pragma once
#include <setjmp.h>

#include <cstddef>
#include <vector>

namespace substitute {

// Begins at `body`, which never returns. A fiber stays with the thread that has started it.
class Fiber {
 public:
  Fiber() = default;  // the one that runs already
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // Leaves this one, which runs, for another. Comes back when somebody switches to this one.
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
