// A reply is a sequence of records: item, bytes, text. Item -1 is an error: its exit code, then its text. Item -2 is
// the time that the process has spent.
#include "predict/parallel.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/child_process.h"
#include "base/cores.h"
#include "base/error.h"
#include "job/spent_time.h"
#include "script/script_server.h"

namespace prun {
namespace {

struct FrameHead {
  int32_t item = 0, bytes = 0;
};

void write_frame(int pipe, int item, const std::string& text) {
  const FrameHead head{item, static_cast<int32_t>(text.size())};
  std::string all(reinterpret_cast<const char*>(&head), sizeof head);
  all += text;
  for (size_t at = 0; at < all.size();) {
    const ssize_t written = write(pipe, all.data() + at, all.size() - at);
    if (written <= 0) _exit(1);  // the reader has exited
    at += static_cast<size_t>(written);
  }
}

// A counter shared by all processes.
class SharedCounter {
 public:
  SharedCounter() {
    void* page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw usage_error("no memory to share between processes");
    count_ = new (page) std::atomic<int>(0);
  }
  ~SharedCounter() { munmap(count_, sizeof *count_); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  int next() { return count_->fetch_add(1); }

 private:
  std::atomic<int>* count_;
};

constexpr int kFailed = -1, kSpent = -2;

void work_on_items(int pipe, SharedCounter& counter, int count, const std::string& lua_dir,
                   const std::function<std::string(int)>& work) {
  try {
    const ScriptServer scripts(lua_dir);
    spent_time().clear();
    for (int item = counter.next(); item < count; item = counter.next()) write_frame(pipe, item, work(item));
    write_frame(pipe, kSpent, nlohmann::json(spent_time()).dump());
  } catch (const std::exception& caught) {
    const Error error = error_of(caught);
    write_frame(pipe, kFailed, std::string(1, static_cast<char>(error.code())) + error.what());
  }
  _exit(0);
}

// Removes complete records from the front of `reply`; returns the number of items among them.
int take_frames(std::string& reply, std::vector<std::string>& results) {
  int taken = 0;
  size_t at = 0;
  FrameHead head;
  while (reply.size() - at >= sizeof head) {
    std::memcpy(&head, reply.data() + at, sizeof head);
    if (reply.size() - at - sizeof head < static_cast<size_t>(head.bytes)) break;
    const std::string text = reply.substr(at + sizeof head, static_cast<size_t>(head.bytes));
    at += sizeof head + text.size();
    if (head.item == kFailed) throw Error(static_cast<Exit>(text.at(0)), text.substr(1));
    if (head.item == kSpent) {
      for (const auto& [part, seconds] : nlohmann::json::parse(text).get<SpentTime>()) spent_time()[part] += seconds;
      continue;
    }
    results.at(static_cast<size_t>(head.item)) = text;
    ++taken;
  }
  reply.erase(0, at);
  return taken;
}

}  // namespace

std::vector<std::string> in_processes(int count, const std::string& lua_dir,
                                      const std::function<std::string(int)>& work,
                                      const std::function<void(int)>& progress) {
  std::vector<std::string> results(static_cast<size_t>(count));
  SharedCounter counter;
  struct Worker {
    ChildProcess process;
    std::string reply;
    bool ended = false;
  };
  std::deque<Worker> workers;
  for (int i = 0; i < std::min(count, usable_cores()); ++i)
    workers.push_back({ChildProcess([&](int pipe) { work_on_items(pipe, counter, count, lua_dir, work); }), "", false});
  int done = 0;
  while (std::any_of(workers.begin(), workers.end(), [](const Worker& each) { return !each.ended; }))
    for (Worker& each : workers) {
      if (each.ended) continue;
      each.ended = each.process.read_reply(ChildProcess::Clock::now() + std::chrono::milliseconds(20), each.reply);
      done += take_frames(each.reply, results);
      progress(done);
    }
  PRUN_CHECK(done == count, "a process that simulates plans died");
  return results;
}

}  // namespace prun
