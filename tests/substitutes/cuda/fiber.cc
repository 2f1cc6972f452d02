// ucontext makes the first switch to a new stack, the only portable way; later switches use setjmp and longjmp, which
// save no signal mask and so cost nanoseconds.
#undef _FORTIFY_SOURCE  // its longjmp refuses to switch to another stack
#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <mutex>

#include "substitute.h"

namespace substitute {
namespace {

constexpr size_t kGuard = 4096, kStack = 128 * 1024;

// Stacks are reused by other threads; the lowest page of each faults.
struct Stacks {
  std::mutex mutex;
  std::vector<char*> free;

  char* take() {
    {
      std::lock_guard lock(mutex);
      if (!free.empty()) {
        char* stack = free.back();
        free.pop_back();
        return stack;
      }
    }
    void* map = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) die("no memory for the stack of a kernel's thread");
    mprotect(map, kGuard, PROT_NONE);
    return static_cast<char*>(map);
  }
  void give(char* stack) {
    std::lock_guard lock(mutex);
    free.push_back(stack);
  }
};
Stacks& stacks() {
  static auto* instance = new Stacks;
  return *instance;
}

}  // namespace

Fiber::Fiber(void (*body)(void*), void* argument)
    : body_(body), argument_(argument), stack_(stacks().take()), started_(false) {}

Fiber::~Fiber() {
  if (stack_ != nullptr) stacks().give(stack_);
}

void Fiber::switch_to(Fiber& other) {
  if (_setjmp(context_) != 0) return;
  if (!other.started_) other.enter();
  _longjmp(other.context_, 1);
}

void Fiber::enter() {
  started_ = true;
  thread_local Fiber* entering;
  entering = this;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack_;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(
      &context, [] { entering->body_(entering->argument_); }, 0);
  setcontext(&context);
  die("setcontext has failed");
}

}  // namespace substitute
