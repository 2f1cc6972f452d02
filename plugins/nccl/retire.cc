// The threads own what they use, so that one that hangs can be left behind.
#include "retire.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

namespace prun::nccl {
namespace {

constexpr auto kStuck = std::chrono::seconds(1);

void end_communicator(const Library& library, Native& native, bool abort) {
  const Nccl& nccl = library.nccl();
  library.cuda().set_device(native.device);
  // Both free the communicator. A call that has been stuck for so long will not come back before it is aborted.
  if (native.calls.try_lock_for(kStuck)) native.calls.unlock();
  if (native.handle != nullptr && abort) {
    nccl.abort(native.handle);
  } else if (native.handle != nullptr) {
    for (const auto& [buffer, handle] : native.registered) nccl.comm_deregister(native.handle, handle);
    ncclResult_t state = nccl.finalize(native.handle);
    while (state == ncclInProgress && nccl.async_error(native.handle, &state) == ncclSuccess && state == ncclInProgress)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    nccl.destroy(native.handle);
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
    // No thread to be had: `finish` names it, and the process is about to end anyway.
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
