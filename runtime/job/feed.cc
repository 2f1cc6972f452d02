#include "job/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "checkpoint/reader.h"
#include "ir/ops.h"
#include "job/job_spec.h"

namespace prun {
namespace {

bool reads_batches(const Program& program) {
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops)
      if (op.is(ops::next_batch)) return true;
  return false;
}

// Returns the cursor of the checkpoint that the run begins with; "" = unknown, the feeder then counts samples.
std::string cursor_of(const JobSpec& spec) {
  const CheckpointSettings& s = spec.checkpoint;
  if (!s.resumes || s.resume.empty() || s.replaced_data_of == s.resume) return "";
  return checkpoint::read_index(s.resume).data.identity.cursor;
}

}  // namespace

void JobFeed::await(const Plan& plan, const JobSpec& spec) {
  const std::string& feed = plan.data.feed;
  if (feed.empty()) return;
  if (spec.launch.nnodes > 1)
    throw plan_error("prun.data.feed serves the ranks of one node; this job has several: train from files there",
                     plan.data.site);
  if (ring_ != nullptr && ring_->feeder_lives()) return;  // of the previous attempt, with the job's lock
  ring_.reset();
  const auto begin = std::chrono::steady_clock::now();
  double said = 1;
  while ((ring_ = FeedRing::open(feed)) == nullptr) {
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (waited > spec.world.deadline_s)
      throw Error(Exit::feed,
                  fmt::format("no process feeds '{}' ({}): none has come within {} s (--timeout); start the feeder, in "
                              "Python prun.feed(batches, \"{}\")",
                              feed, feed_path(feed), spec.world.deadline_s, feed));
    if (waited > said) {
      fmt::print(stderr, "prun: waiting for the feed '{}' ({})\n", feed, feed_path(feed));
      said *= 4;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  require_feed_fits(ring_->header(), plan.data, plan.data.site);
}

void JobFeed::attach(const Job& job, const JobSpec& spec) {
  if (ring_ == nullptr) return;
  const RunPosition& position = job.classes.front().schedule.begin;
  const std::string& feed = job.classes.front().step().data.feed;
  if (!position.left_out.runs.empty())
    throw usage_error(fmt::format("the feed '{}' cannot leave out samples of steps that were not finite", feed));
  const size_t ranks = job.class_of_rank.size();
  if (ranks > PRUN_FEED_RANKS)
    throw usage_error(fmt::format("the feed '{}' serves {} ranks, and there are {}", feed, PRUN_FEED_RANKS, ranks));
  ring_->hold();
  prun_feed_header& head = ring_->header();
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Program& program = job.classes[static_cast<size_t>(job.class_of_rank[rank])];
    std::atomic_ref(head.taken[rank]).store(reads_batches(program) ? 0 : kReadsNothing);
  }
  head.ranks = static_cast<uint32_t>(ranks);
  head.samples = static_cast<uint64_t>(position.samples);
  const std::string cursor = cursor_of(spec);
  std::memset(head.cursor, 0, sizeof head.cursor);
  cursor.copy(head.cursor, sizeof head.cursor - 1);
  std::atomic_ref(head.attached).fetch_add(1, std::memory_order_release);
}

}  // namespace prun
