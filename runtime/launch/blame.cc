// The rules: the heaviest failure is the cause; a failure that blames a peer is replaced by the peer's own report, if
// any; a lost peer that is still alive means a lost link. A hang is followed along the waits to its end.
#include "launch/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"

namespace prun {
namespace {

using std::chrono::milliseconds;

struct Weighing {
  Weight weight;
  milliseconds settles;
};

constexpr Weighing kTable[] = {
    {Weight::bystander, milliseconds(2000)},   // the aborting rank may need up to 1 s to finish work in progress
    {Weight::silent_exit, milliseconds(400)},  // longer than a rank waits before it reports a lost peer
    {Weight::symptom, milliseconds(100)},      // the kernel, or another launcher, is about to report the death
    {Weight::waited, milliseconds(500)},       // launchers report which ranks wait for which
    {Weight::observed, milliseconds(0)},      {Weight::killed, milliseconds(0)},
};

// A corrupt frame may be the last one of a process that has died.
constexpr milliseconds kCorruptLink(80);

Clock::duration settles_in(const Failure& failure) {
  const bool corrupt = failure.weight == Weight::observed && failure.code == static_cast<int>(Exit::corrupt_link);
  return corrupt ? kCorruptLink : prun::settles_in(failure.weight);
}

const RankWaits* find_rank(int rank, const std::vector<RankWaits>& ranks) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankWaits& each) { return each.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

bool is_stopped(const RankWaits& rank) { return rank.state == 'T' || rank.state == 't'; }

// Returns a text such as "rank 0 waits for 1, 1 for 3".
std::string chain_words(const std::vector<int>& path) {
  std::string words;
  for (size_t i = 0; i + 1 < path.size(); ++i)
    words += fmt::format("{}{} {} {}", i == 0 ? "rank " : ", ", path[i], i == 0 ? "waits for" : "for", path[i + 1]);
  return words;
}

std::string holdup_words(const RankWaits& rank) {
  if (is_stopped(rank)) return "is stopped (SIGSTOP, Ctrl-Z or a debugger)";
  if (rank.state == 'D') return "is in a wait of the kernel's that nothing ends (state D: a disk, a network drive)";
  if (rank.state == 'X' || rank.state == 'Z') return "has ended";
  return "does not join the collective and waits for no rank";
}

Failure held_up_by(const RankWaits& culprit, const Failure& told, const std::vector<int>& path) {
  Failure failure = told;
  set_who(failure, culprit.name);
  failure.what = fmt::format("rank {} {}: the others wait for it", culprit.rank, holdup_words(culprit));
  failure.op = culprit.op;
  const std::string chain = chain_words(path);
  failure.evidence = chain.empty() ? told.what : chain + "; " + told.what;
  if (is_stopped(culprit))
    failure.next = fmt::format("kill -CONT {}   # lets it go on, if the job is run again", culprit.name.pid);
  return failure;
}

Failure explain_hang(const Failure& told, const std::vector<RankWaits>& ranks) {
  const RankWaits* teller = find_rank(told.rank, ranks);
  if (teller == nullptr || teller->awaited.empty()) return told;  // it found the cause itself
  std::vector<int> path;
  const std::optional<int> culprit = who_holds_up(told.rank, ranks, &path);
  if (culprit) return held_up_by(*find_rank(*culprit, ranks), told, path);
  Failure failure = told;
  failure.evidence = chain_words(path);
  return failure;
}

}  // namespace

Clock::duration settles_in(Weight weight) {
  return std::find_if(std::begin(kTable), std::end(kTable), [&](const Weighing& w) { return w.weight == weight; })
      ->settles;
}

std::optional<int> who_holds_up(int waiting, const std::vector<RankWaits>& ranks, std::vector<int>* path) {
  std::map<int, int> came_from{{waiting, -1}};  // breadth first
  std::vector<int> queue{waiting};
  std::optional<int> idle, stopped;
  int turn = waiting;  // the rank whose wait closes the cycle
  for (size_t i = 0; i < queue.size(); ++i) {
    const RankWaits* at = find_rank(queue[i], ranks);
    if (at == nullptr) turn = std::max(0, came_from.at(queue[i]));  // its launcher has not answered
    if (at == nullptr) continue;
    if (is_stopped(*at) && !stopped) stopped = at->rank;
    if (at->awaited.empty() && !idle) idle = at->rank;
    for (int next : at->awaited) {
      if (came_from.try_emplace(next, at->rank).second)
        queue.push_back(next);
      else
        turn = at->rank;
    }
  }
  const std::optional<int> culprit = stopped ? stopped : idle;
  path->clear();
  for (int at = culprit.value_or(turn); at >= 0; at = came_from.at(at)) path->insert(path->begin(), at);
  if (culprit) return culprit;
  if (const RankWaits* last = find_rank(turn, ranks); last != nullptr && !last->awaited.empty())
    path->push_back(last->awaited.front());
  // The waits of some threads are unknown; a stopped rank is worth reporting even if no known wait leads to it.
  const auto any = std::find_if(ranks.begin(), ranks.end(), is_stopped);
  if (any == ranks.end()) return std::nullopt;
  path->clear();
  return any->rank;
}

void Blame::add(Failure failure, Clock::time_point now) {
  const Clock::time_point due = now + settles_in(failure);
  const auto same = std::find_if(failures_.begin(), failures_.end(),
                                 [&](const Failure& each) { return each.rank == failure.rank && failure.rank >= 0; });
  if (same != failures_.end() && same->weight >= failure.weight) return;
  const Failure* before = weightiest();
  const bool better = before == nullptr || failure.weight > before->weight;
  if (same != failures_.end())
    *same = std::move(failure);
  else
    failures_.push_back(std::move(failure));
  if (better) due_ = due;
}

void Blame::add(std::vector<RankWaits> ranks) {
  waits_.insert(waits_.end(), std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end()));
}

void Blame::waits_are_known(Clock::time_point now) {
  const Failure* most = weightiest();
  if (most != nullptr && most->weight == Weight::waited) due_ = std::min(due_, now + settles_in(Weight::symptom));
}

const Failure* Blame::of_rank(int rank) const {
  const auto found =
      std::find_if(failures_.begin(), failures_.end(), [&](const Failure& each) { return each.rank == rank; });
  return found == failures_.end() ? nullptr : &*found;
}

const Failure* Blame::weightiest() const {
  const auto most = std::max_element(failures_.begin(), failures_.end(),
                                     [](const Failure& a, const Failure& b) { return a.weight < b.weight; });
  return most == failures_.end() ? nullptr : &*most;
}

// Returns a loss that both ends of a link report of each other; the other ranks report a lost peer only indirectly.
const Failure* Blame::mutual_loss() const {
  for (const Failure& each : failures_) {
    const Failure* other = each.peer >= 0 ? of_rank(each.peer) : nullptr;
    if (other != nullptr && other->peer == each.rank) return &each;
  }
  return nullptr;
}

Failure Blame::judge(const std::function<bool(int rank)>& returned, const JobCommand& command) const {
  const Failure* cause = weightiest();
  if (cause->weight == Weight::waited) return explain_hang(*cause, waits_);
  if (cause->weight != Weight::symptom || cause->peer < 0) return *cause;
  // The lost peer's own report, even if only of a silent exit, comes before its loss.
  for (size_t hops = 0; hops <= failures_.size() && cause->peer >= 0; ++hops) {
    const Failure* other = of_rank(cause->peer);
    if (other == nullptr || other->weight == Weight::bystander) break;
    cause = other;
  }
  if (cause->peer < 0 || returned(cause->peer)) return *cause;
  if (const Failure* mutual = mutual_loss()) cause = mutual;
  Failure link = *cause;
  link.code = static_cast<int>(Exit::corrupt_link);
  link.what = fmt::format("the link between rank {} and rank {} is lost; both still ran", cause->rank, cause->peer);
  link.evidence = cause->what;
  link.next = next_command(link.code, command);
  return link;
}

}  // namespace prun
