// The part of the observer that makes ranks of other nodes look like those of this one.
#include <unistd.h>

#include <algorithm>

#include "exec/clock.h"
#include "watch/observer.h"

namespace prun {
namespace {

constexpr size_t kKeptEvents = 64;  // of each stream, of a run that failed
constexpr size_t kSample = 128;     // for slow ranks
constexpr uint64_t kSampleEveryNs = 500'000'000;

}  // namespace

void Observer::placed(const Topology& topology, bool mirror_all) {
  topology_ = topology;
  mirror_all_ = mirror_all;
}

// In their order; other nodes know only their own.
std::vector<WatchedRank> Observer::all_ranks(const std::vector<int>& pids) {
  std::vector<WatchedRank> watched;
  for (size_t i = 0; i < ranks_.size(); ++i)
    watched.push_back({ranks_[i], topology_.node, pids[i], topology_.here().host, recorders_[i]});
  if (topology_.node != 0) {
    for (size_t i = 0; i < ranks_.size(); ++i) sources_.emplace_back(*recorders_[i], pids[i]);
    return watched;
  }
  for (int rank = topology_.here().ranks; rank < topology_.ranks(); ++rank) {
    const int node = topology_.node_of(rank);
    MirrorCopy& copy = copies_.try_emplace(rank, recorder_capacity(spec_)).first->second;
    ranks_.push_back(rank);
    recorders_.push_back(copy.recorder());
    watched.push_back({rank, node, 0, topology_.nodes[static_cast<size_t>(node)].host, copy.recorder(), false});
  }
  return watched;
}

std::vector<std::pair<int, std::string>> Observer::mirror(bool last) {
  std::vector<std::pair<int, std::string>> news = std::exchange(last_news_, {});
  if (sources_.empty()) return news;
  const uint64_t now = now_ns();
  const bool sampled = now >= next_sample_ns_;
  if (sampled) next_sample_ns_ = now + kSampleEveryNs;
  const size_t events = mirror_all_ ? SIZE_MAX : sampled ? kSample : 0;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (last || sampled || mirror_all_ || sources_[i].has_steps())
      news.emplace_back(ranks_[i], sources_[i].take(watch_->ranks()[i].process, events, watch_->ranks()[i].kernel));
  return news;
}

void Observer::mirrored(int rank, std::string_view bytes) {
  const auto found = copies_.find(rank);
  if (found == copies_.end() || !found->second.put(bytes, now_ns())) return;
  for (WatchedRank& watched : watch_->ranks()) {
    if (watched.rank != rank) continue;
    watched.pid = found->second.pid();
    watched.process = found->second.process();
    watched.kernel = found->second.kernel();
  }
}

// Before ranks know: each still stands where it stood.
void Observer::ending() {
  if (!watch_) return;
  watch_->freeze();
  flight_ = watch_->flight(kKeptEvents);
  for (size_t i = 0; i < sources_.size(); ++i) {
    sources_[i].freeze();
    last_news_.emplace_back(
        ranks_[i],
        sources_[i].take(watch_->ranks()[i].process, mirror_all_ ? SIZE_MAX : kKeptEvents, watch_->ranks()[i].kernel));
  }
}

// With what other nodes have said since.
void Observer::keep_flight() {
  if (folder_ == nullptr || job.classes.empty() || flight_.ranks.empty()) return;
  const Flight now = watch_->flight(kKeptEvents);
  for (FlightRank& rank : flight_.ranks)
    if (const FlightRank* known = now.of(rank.rank); known != nullptr && copies_.count(rank.rank) != 0) rank = *known;
  folder_->keep_flight(flight_json(flight_), serialize_job(job));
}

}  // namespace prun
