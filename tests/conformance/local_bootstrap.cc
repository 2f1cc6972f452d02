// Slots in shared memory, in two generations: a rank that writes the next one has read the previous one.
#include "tests/conformance/local_bootstrap.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace prun::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMaxRanks = 16;
constexpr size_t kBlobBytes = 8192, kTextBytes = 4096;

struct Slot {
  std::atomic<int64_t> generation;
  size_t bytes;
  char data[kBlobBytes];
};
struct Shared {
  std::atomic<int> aborted;
  std::atomic<int> reason_taken;
  char reason[256];
  Slot slots[kMaxRanks][2];
  char texts[kMaxRanks][kTextBytes];
};

void write_text(Shared* shared, int rank, const std::string& text) {
  std::strncpy(shared->texts[rank], text.c_str(), kTextBytes - 1);
}

class SharedBootstrap : public LocalBootstrap {
 public:
  SharedBootstrap(Shared* shared, int rank, int ranks, double timeout_s)
      : shared_(shared), rank_(rank), ranks_(ranks), timeout_s_(timeout_s) {}
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  bool aborted() const override { return shared_->aborted.load(std::memory_order_relaxed) != 0; }
  std::string abort_reason() const override { return aborted() ? shared_->reason : ""; }
  void fatal(const Error& error) override {
    write_text(shared_, rank_, fmt::format("Exit {}: {}", static_cast<int>(error.code()), error.what()));
    abort_job(fmt::format("rank {} failed: {}", rank_, error.what()));
    _exit(1);
  }
  void abort_job(const std::string& reason) override { abort_shared(shared_, reason); }

  static void abort_shared(Shared* shared, const std::string& reason) {
    if (shared->reason_taken.exchange(1) == 0) {
      std::strncpy(shared->reason, reason.c_str(), sizeof shared->reason - 1);
      shared->aborted.store(1);
    }
  }

  std::vector<std::string> all_gather(const std::string& blob) override {
    PRUN_CHECK(blob.size() <= kBlobBytes, fmt::format("a blob of {} bytes", blob.size()));
    int64_t generation = ++generation_;
    Slot& mine = shared_->slots[rank_][generation % 2];
    mine.bytes = blob.size();
    if (!blob.empty()) std::memcpy(mine.data, blob.data(), blob.size());
    mine.generation.store(generation, std::memory_order_release);
    std::vector<std::string> all;
    auto start = Clock::now();
    for (int r = 0; r < ranks_; ++r) {
      Slot& slot = shared_->slots[r][generation % 2];
      while (slot.generation.load(std::memory_order_acquire) < generation) {
        if (aborted()) throw Aborted(abort_reason());
        if (Clock::now() - start > std::chrono::duration<double>(timeout_s_)) {
          throw Error(Exit::join, fmt::format("rank {} has not joined", r));
        }
        sched_yield();
      }
      all.emplace_back(slot.data, slot.bytes);
    }
    return all;
  }

 private:
  Shared* shared_;
  int rank_, ranks_;
  double timeout_s_;
  int64_t generation_ = 0;
};

[[noreturn]] void be_rank(Shared* shared, int rank, const LocalJob& job,
                          const std::function<std::string(LocalBootstrap&)>& body) {
  int status = 0;
  SharedBootstrap bootstrap(shared, rank, job.ranks, job.timeout_s);
  try {
    std::string text = body(bootstrap);
    write_text(shared, rank, text);
    status = text.empty() ? 0 : 1;
    if (status != 0 && job.abort_on_death) bootstrap.abort_job(fmt::format("rank {} failed: {}", rank, text));
  } catch (const Aborted& aborted) {
    write_text(shared, rank, std::string("Aborted: ") + aborted.what());
    status = 1;
  } catch (const Error& error) {
    write_text(shared, rank, fmt::format("Exit {}: {}", static_cast<int>(error.code()), error.what()));
    if (job.abort_on_death) bootstrap.abort_job(fmt::format("rank {} failed: {}", rank, error.what()));
    status = 1;
  } catch (const std::exception& error) {
    write_text(shared, rank, std::string("exception: ") + error.what());
    status = 1;
  }
  // exit, not _exit, so that leak checkers see the rank's end; the test's own static state is small.
  std::exit(status);
}

// Returns how a rank ended that left no text, with a leading space.
std::string end_of(const RankReport& report) {
  const char* signal = report.status > 128 ? sigabbrev_np(report.status - 128) : nullptr;
  if (signal != nullptr) return fmt::format(" was killed by SIG{} after {:.1f} s", signal, report.seconds);
  return report.text.empty() ? fmt::format(" ended with exit code {}", report.status) : "";
}

}  // namespace

std::vector<RankReport> run_ranks(const LocalJob& job, const std::function<std::string(LocalBootstrap&)>& body) {
  PRUN_CHECK(job.ranks <= kMaxRanks, fmt::format("{} ranks", job.ranks));
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PRUN_CHECK(memory != MAP_FAILED, "no shared memory");
  auto* shared = new (memory) Shared();
  std::vector<pid_t> pids(static_cast<size_t>(job.ranks));
  std::vector<RankReport> reports(pids.size());
  fflush(nullptr);
  auto start = Clock::now();
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    pids[rank] = fork();
    PRUN_CHECK(pids[rank] >= 0, "fork failed");
    if (pids[rank] == 0) be_rank(shared, static_cast<int>(rank), job, body);
  }
  for (size_t left = pids.size(); left > 0;) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (pid == 0) {
      if (seconds > job.timeout_s) {
        for (pid_t p : pids) {
          if (p > 0) kill(p, SIGKILL);
        }
      }
      usleep(500);
      continue;
    }
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      if (pids[rank] != pid) continue;
      --left;
      pids[rank] = -1;
      reports[rank].seconds = seconds;
      reports[rank].text = shared->texts[rank];
      reports[rank].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (!WIFSIGNALED(status)) continue;
      if (seconds > job.timeout_s) reports[rank].text = "still running at the timeout";
      if (job.abort_on_death)
        SharedBootstrap::abort_shared(shared, fmt::format("rank {} was killed by signal {}", rank, WTERMSIG(status)));
    }
  }
  munmap(memory, sizeof(Shared));
  return reports;
}

std::string failures(const std::vector<RankReport>& reports) {
  std::string text;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].status == 0) continue;
    text += fmt::format("rank {}{}: {}\n", rank, end_of(reports[rank]), reports[rank].text);
  }
  return text;
}

}  // namespace prun::testing
