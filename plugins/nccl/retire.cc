// Threads that end communicators. They own the objects that they use, so that a hanging thread can be abandoned.
#include "retire.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

namespace prun::nccl {
namespace {

// Limits for a call to return before the abort. A call that waits for another rank returns because of the abort.
constexpr auto kStuck = std::chrono::seconds(1);
constexpr auto kWaiting = std::chrono::milliseconds(20);

void destroy(const Nccl& nccl, ncclComm_t comm) {
  ncclResult_t state = nccl.finalize(comm);
  while (state == ncclInProgress && nccl.async_error(comm, &state) == ncclSuccess && state == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  nccl.destroy(comm);
}

void end_communicator(const Library& library, Native& native, bool abort) {
  const Nccl& nccl = library.nccl();
  library.cuda().set_device(native.device);
  // Both branches free the communicator. A call that has been stuck for kStuck returns only after the abort.
  if (native.calls.try_lock_for(kStuck)) native.calls.unlock();
  const auto soon = std::chrono::steady_clock::now() + kWaiting;
  while (native.in_call && std::chrono::steady_clock::now() < soon)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (abort) {
    // The parent first: this ends a split in progress, which may create a handle.
    if (native.parent != nullptr) nccl.abort(native.parent);
    if (native.handle != nullptr) nccl.abort(native.handle);
  } else {
    for (const auto& [buffer, handle] : native.registered) nccl.comm_deregister(native.handle, handle);
    for (const ncclComm_t comm : {native.handle, native.parent})
      if (comm != nullptr) destroy(nccl, comm);
  }
  if (native.stream != nullptr) library.cuda().stream_destroy(native.stream);
}

}  // namespace

void Retirement::start(const std::shared_ptr<Native>& native, bool abort) {
  if (native->retiring.exchange(true)) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->going.push_back(native);
  }
  auto work = [library = library_, state = state_, native, abort] {
    end_communicator(*library, *native, abort);
    native->ended = true;
    std::lock_guard lock(state->mutex);
    std::erase(state->going, native);
    state->changed.notify_all();
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    // Without a thread the communicator is not ended: `finish` names it, and the process is about to end anyway.
  }
}

std::vector<std::string> Retirement::finish(int milliseconds) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return state_->going.empty(); });
  std::vector<std::string> left;
  for (const auto& native : state_->going) left.push_back(native->name);
  return left;
}

}  // namespace prun::nccl
