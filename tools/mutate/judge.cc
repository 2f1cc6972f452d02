// Runs programs that verify accepts in a child process, because a mutant may crash a kernel; a crash counts as a
// difference.
#include "judge.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "verify/verify.h"

namespace prun::mutate {
namespace {

double tolerance(Dtype dtype) { return dtype == Dtype::f64 ? 1e-9 : dtype == Dtype::f32 ? 1e-4 : 2e-2; }

bool near(double a, double b, double relative) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= relative * std::max(std::abs(a), std::abs(b)) + relative * 1e-3;
}

template <class T>
bool near(const std::vector<std::byte>& a, const std::vector<std::byte>& b, double relative) {
  for (size_t at = 0; at + sizeof(T) <= a.size(); at += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &a[at], sizeof x);
    std::memcpy(&y, &b[at], sizeof y);
    if (!near(static_cast<double>(x), static_cast<double>(y), relative)) return false;
  }
  return true;
}

Dtype dtype_of(const Program& program, size_t buffer) {
  for (const Tensor& tensor : program.tensors)
    if (tensor.buffer == static_cast<int>(buffer)) return tensor.dtype;
  return Dtype::u8;
}

}  // namespace

Judge::Judge(const Job& right, const Device& device)
    : device_(device), right_(right), expected_(run_virtual_ranks(right, device)) {}

std::string Judge::compare(const Job& job, const VirtualRun& run) const {
  const Program& program = right_.classes.front();
  const TensorId loss = program.step().loss;
  const double bound = tolerance(loss < 0 ? Dtype::f32 : program.tensors[loss].dtype);
  for (const bool trained : {true, false}) {
    const auto &mine = trained ? run.losses : run.eval_losses,
               &right = trained ? expected_.losses : expected_.eval_losses;
    const std::string_view what = trained ? "step" : "evaluation";
    if (mine.size() != right.size()) return fmt::format("the number of {}s that have a loss", what);
    for (size_t i = 0; i < mine.size(); i++) {
      if (mine[i].size() != right[i].size()) return fmt::format("who has the loss of {} {}", what, i);
      for (size_t rank = 0; rank < mine[i].size(); rank++)
        if (!near(mine[i][rank], right[i][rank], bound))
          return fmt::format("the loss of {} {} on rank {}: {} is {}", what, i, rank, right[i][rank], mine[i][rank]);
    }
  }
  for (size_t rank = 0; rank < run.persistent.size(); rank++) {
    const Program& mine = job.program(static_cast<int>(rank));
    size_t next = 0;
    for (size_t id = 0; id < mine.buffers.size(); id++) {
      const Buffer& buffer = mine.buffers[id];
      if (!buffer.persistent) continue;
      const std::vector<std::byte>&a = expected_.persistent[rank][next].bytes, &b = run.persistent[rank][next].bytes;
      next++;
      constexpr Role kCompared[] = {Role::param, Role::optimizer, Role::frozen, Role::buffer};
      if (std::ranges::find(kCompared, buffer.role) == std::end(kCompared)) continue;
      const Dtype dtype = dtype_of(mine, id);
      const bool same = dtype == Dtype::f64   ? near<double>(a, b, tolerance(dtype))
                        : dtype == Dtype::f32 ? near<float>(a, b, tolerance(dtype))
                                              : a == b;
      if (!same) return fmt::format("'{}' on rank {}", buffer.name, rank);
    }
  }
  return "";
}

std::string Judge::difference(const Job& job) const {
  for (int i = 0; i < kInterleavings; i++) {
    VirtualOptions options;
    options.order = i == 0 ? VirtualOrder::early : i == 1 ? VirtualOrder::late : VirtualOrder::random;
    options.seed = static_cast<uint64_t>(i);
    try {
      const std::string differs = compare(job, run_virtual_ranks(job, device_, options));
      if (!differs.empty()) return differs;
    } catch (const Error& error) {
      return error.what();
    }
  }
  return "";
}

Verdict Judge::judge(const Mutant& mutant) const {
  const std::vector<Finding> findings = verify_job(mutant.job, 0);
  if (!findings.empty()) return {Outcome::refused, findings.front().rule};
  if (mutant.without_effect) return {Outcome::without_effect, ""};
  int ends[2];
  PRUN_CHECK(pipe(ends) == 0, strerror(errno));
  const pid_t child = fork();
  PRUN_CHECK(child >= 0, strerror(errno));
  if (child == 0) {
    const std::string differs = difference(mutant.job);
    const ssize_t written = write(ends[1], differs.data(), std::min<size_t>(differs.size(), 4096));
    _exit(written < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string differs(4096, '\0');
  const ssize_t n = read(ends[0], differs.data(), differs.size());
  differs.resize(n > 0 ? static_cast<size_t>(n) : 0);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) differs = "the run crashes";
  if (mutant.is_proven)
    return differs.empty() ? Verdict{Outcome::escaped, "nothing"} : Verdict{Outcome::refused, "the proof"};
  return differs.empty() ? Verdict{Outcome::equivalent, ""} : Verdict{Outcome::escaped, differs};
}

}  // namespace prun::mutate
