#include "watch/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "exec/recorder.h"

namespace prun {
namespace {

// Samples are frequent, so that short ops do not fill half a ring in between. Ops are recorded when they end, so the
// last events before a sample would show an intermittently stopped rank only between its stops.
constexpr uint64_t kLook = 100'000'000, kWindow = 3'000'000'000;
constexpr int64_t kLeastMeetings = 8;  // in a window
constexpr double kSlowShare = 0.2;     // fraction of the time that the others wait
constexpr double kAboveNext = 2;       // times the lateness of any other rank; otherwise the machine is busy
constexpr int kWindows = 3;

// Returns whether an op involves a whole group; such ops are numbered by axis and lane. Point-to-point messages are
// excluded, because pipeline stages wait for each other by design.
bool meets(const Op& op) { return op.communicates() && !op.point_to_point() && !op.offers(); }

}  // namespace

void SlowRanks::begin(const Job& job) {
  job_ = &job;
  std::map<std::string, int> numbers;
  for (const Program& program : job.classes) {
    std::vector<std::vector<Meeting>>& streams = meetings_of_.emplace_back();
    std::map<std::string, int> next;
    for (const Stream& stream : program.step().streams) {
      std::vector<Meeting>& meetings = streams.emplace_back();
      for (const Op& op : stream.ops) {
        Meeting& meeting = meetings.emplace_back();
        if (!meets(op)) continue;
        const std::string lane = fmt::format("{}/{}", op.axis, op.lane);
        meeting = {&op.axis, numbers.try_emplace(lane, static_cast<int>(numbers.size())).first->second, next[lane]++};
      }
    }
  }
  lanes_ = numbers.size();
}

void SlowRanks::tick(const std::vector<WatchedRank>& ranks, const std::function<void(const std::string&)>& warn) {
  const uint64_t now = now_ns();
  if (job_ == nullptr || ranks.size() < 2 || now < next_look_ns_) return;
  next_look_ns_ = now + kLook;
  if (window_ends_ns_ == 0) {
    window_ends_ns_ = now + kWindow;
    read_.resize(ranks.size());
    groups_.assign(ranks.size(), std::vector<Group>(lanes_));
    late_s_.assign(ranks.size(), 0);
    in_a_row_.assign(ranks.size(), 0);
  }
  sample(ranks);
  if (now < window_ends_ns_) return;
  close_window(ranks, warn);
  window_ends_ns_ = now + kWindow;
  late_s_.assign(ranks.size(), 0);
  span_s_ = 0;
  meetings_ = 0;
}

void SlowRanks::sample(const std::vector<WatchedRank>& ranks) {
  std::vector<Arrival> arrivals;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> inside(ranks.size());  // by rank, spans of its collectives
  for (size_t r = 0; r < ranks.size(); ++r) {
    RecorderHeader& recorder = *ranks[r].recorder;
    const Mesh& mesh = job_->classes.front().mesh;
    const auto& streams = meetings_of_[static_cast<size_t>(job_->class_of_rank[static_cast<size_t>(ranks[r].rank)])];
    for (size_t s = 0; s < streams.size() && s < kMaxStreams; ++s) {
      const uint64_t written = recorder.stream[s].written.load(std::memory_order_acquire);
      uint64_t& read = read_[r][s];
      const uint64_t most = recorder.capacity / 2;
      for (uint64_t at = std::max(read, written - std::min(written, most)); at < written; ++at) {
        const OpEvent event = recorder_ring(&recorder, static_cast<int>(s))[at & (recorder.capacity - 1)];
        if (event.end_ns == 0 || event.op >= streams[s].size()) continue;
        const Meeting& meeting = streams[s][event.op];
        if (meeting.axis == nullptr) continue;
        Group& group = groups_[r][static_cast<size_t>(meeting.lane)];
        if (group.size == 0) {
          const std::vector<int> members = mesh.group(*meeting.axis, ranks[r].rank);
          group = {members.front(), members.size()};
        }
        arrivals.push_back(
            {{meeting.lane, group.leader, meeting.number, event.step}, r, group.size, event.begin_ns, event.end_ns});
        inside[r].emplace_back(event.begin_ns, event.end_ns);
      }
      read = written;
    }
  }
  std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
    return std::tie(a.meeting, a.begin_ns) < std::tie(b.meeting, b.begin_ns);
  });
  uint64_t first = UINT64_MAX, last = 0;
  for (size_t at = 0, next = 0; at < arrivals.size(); at = next) {
    while (next < arrivals.size() && arrivals[next].meeting == arrivals[at].meeting) ++next;
    const size_t count = next - at;
    if (count < 2 || count != arrivals[at].group) continue;  // not sampled on all members
    ++meetings_;
    const Arrival& late = arrivals[next - 1];
    first = std::min(first, arrivals[at].begin_ns);
    last = std::max(last, late.end_ns);
    const uint64_t usual = arrivals[at + (count - 1) / 2].begin_ns;  // the median of the others, or just below
    double excess = static_cast<double>(late.begin_ns - usual);
    for (const auto& [begin, end] : inside[late.rank]) {
      const uint64_t from = std::max(begin, usual), to = std::min(end, late.begin_ns);
      if (from < to) excess -= static_cast<double>(to - from);
    }
    late_s_[late.rank] += std::max(0.0, excess) / 1e9;
  }
  if (first < last) span_s_ += static_cast<double>(last - first) / 1e9;
}

void SlowRanks::close_window(const std::vector<WatchedRank>& ranks,
                             const std::function<void(const std::string&)>& warn) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    double next = 0;
    for (size_t other = 0; other < ranks.size(); ++other)
      if (other != r) next = std::max(next, late_s_[other]);
    const double share = span_s_ > 0 ? late_s_[r] / span_s_ : 0;
    const bool slow = meetings_ >= kLeastMeetings && share > kSlowShare && late_s_[r] > kAboveNext * next;
    in_a_row_[r] = slow ? in_a_row_[r] + 1 : 0;
    if (in_a_row_[r] == kWindows) {
      warn(fmt::format(
          "rank {} on {}, pid {}, is slow: the others waited for it for {:.0f}% of the last {} s; the job goes on",
          ranks[r].rank, ranks[r].host, ranks[r].pid, 100 * share, kWindows * kWindow / 1'000'000'000));
    }
    const auto at = std::find(named_.begin(), named_.end(), ranks[r].rank);
    if (in_a_row_[r] >= kWindows && at == named_.end()) named_.push_back(ranks[r].rank);
    if (!slow && at != named_.end()) named_.erase(at);
  }
}

}  // namespace prun
