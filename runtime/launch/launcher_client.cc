// Calls from several threads are serialized, so that lines of one rank remain whole and in order. all_gather has no
// timeout because the launcher ends the wait by shutting down its end of the socket.
#include "launch/launcher_client.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <limits>
#include <map>
#include <thread>

#include "base/thread_annotations.h"

namespace prun {
namespace {

class SocketClient : public LauncherClient {
 public:
  SocketClient(const RankPlace& place, Fd control, JobPage* page)
      : rank_(place.rank), ranks_(place.ranks), control_(std::move(control)), page_(page) {
    begun_ = &page->begun()[place.local_rank];
    kept_ = &page->kept(place.local_ranks)[place.local_rank];
    waits_ = &page->waits(place.local_ranks)[place.local_rank];
  }

  std::vector<std::string> all_gather(const std::string& blob) override {
    MutexLock gather_lock(gather_mutex_);
    send(FrameKind::gather, blob);
    Frame frame;
    while (receive_frame(control_.get(), frame)) {
      if (frame.kind != FrameKind::gathered) continue;
      std::vector<std::string> blobs = unpack<std::vector<std::string>>(frame.payload);
      PRUN_CHECK(static_cast<int>(blobs.size()) == ranks_, fmt::format("{} blobs of {} ranks", blobs.size(), ranks_));
      return blobs;
    }
    if (!aborted()) kill(0, SIGKILL);  // the launcher is gone: otherwise `aborted` would be set
    throw Error(Exit::join, "the job is ending");
  }

  bool aborted() const override { return page_->aborted.load(std::memory_order_acquire) != 0; }

  int64_t begin_step(int64_t step) override {
    begun_->store(step, std::memory_order_seq_cst);
    if (page_->stopping.load(std::memory_order_seq_cst) == 0) return std::numeric_limits<int64_t>::max();
    int64_t steps = 0;
    while ((steps = page_->steps.load(std::memory_order_acquire)) == 0) {
      if (aborted()) return std::numeric_limits<int64_t>::max();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return steps;
  }

  void kept(int64_t step) override { kept_->store(step, std::memory_order_release); }
  int64_t committed() const override { return page_->committed.load(std::memory_order_acquire); }

  void abandon(int64_t step, const std::string& words) override {
    send(FrameKind::abandon, Packer().number(step).text(words).take());
  }
  bool abandoned(int64_t step) const override {
    for (const std::atomic<int64_t>& each : page_->abandoned)
      if (each.load(std::memory_order_acquire) == step) return true;
    return false;
  }

  void fail(const Error& error, const std::string& where) override {
    if (told_end_.exchange(true)) return;
    Packer packer;
    packer.number(static_cast<int>(error.code())).number(error.effect ? 1 : 0).number(error.peer).number(error.step);
    packer.text(error.what()).text(where);
    send(FrameKind::failed, packer.take());
  }

  void end_with_others() override {
    if (!told_end_.exchange(true)) send(FrameKind::bystander, "");
  }

  void waits_for(const std::vector<int>& ranks) override PRUN_EXCLUDES(waits_mutex_) {
    MutexLock lock(waits_mutex_);
    const int next = std::ssize(threads_);
    const int thread = threads_.try_emplace(std::this_thread::get_id(), next).first->second % WaitSlots::kThreads;
    for (int i = 0; i < WaitSlots::kRanks; ++i)
      waits_->rank[thread][i].store(i < std::ssize(ranks) ? ranks[i] + 1 : 0, std::memory_order_relaxed);
  }

  void print(const std::string& line) override { send(FrameKind::line, line); }

 private:
  void send(FrameKind kind, std::string_view payload) PRUN_EXCLUDES(send_mutex_) {
    MutexLock lock(send_mutex_);
    // Fails only if the launcher is gone, which ends this process too.
    send_frame(control_.get(), kind, rank_, payload);
  }

  int rank_, ranks_;
  Fd control_;
  JobPage* page_;
  std::atomic<int64_t>* begun_ = nullptr;  // in page_
  std::atomic<int64_t>* kept_ = nullptr;   // in page_
  WaitSlots* waits_ = nullptr;             // in page_
  std::atomic<bool> told_end_{false};
  Mutex waits_mutex_;
  std::map<std::thread::id, int> threads_ PRUN_GUARDED_BY(waits_mutex_);  // slot number by thread
  Mutex gather_mutex_;  // serializes reads of control_: one all_gather at a time
  Mutex send_mutex_;    // serializes writes to control_
};

}  // namespace

std::unique_ptr<LauncherClient> make_launcher_client(const RankPlace& place, Fd control, JobPage* page) {
  return std::make_unique<SocketClient>(place, std::move(control), page);
}

}  // namespace prun
