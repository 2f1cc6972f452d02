#include <algorithm>

#include "exec/recorder.h"
#include "watch/flight.h"
#include "watch/mirror.h"

namespace prun {
namespace {

constexpr size_t kSample = 128;  // events per stream, to detect slow ranks
constexpr uint64_t kSampleEveryNs = 500'000'000;

}  // namespace

std::vector<WatchedRank> Mirrors::open(RunningJob& job, uint64_t capacity) {
  std::vector<WatchedRank> watched;
  const Topology& topology = job.topology;
  for (size_t i = 0; i < job.pids.size(); ++i)
    watched.push_back({job.ranks[i], topology.node, job.pids[i], topology.here().host, job.recorders[i]});
  if (topology.node != 0) {
    ranks_ = job.ranks;
    for (size_t i = 0; i < ranks_.size(); ++i) sources_.emplace_back(*job.recorders[i], job.pids[i]);
    return watched;
  }
  for (int rank = topology.here().ranks; rank < topology.ranks(); ++rank) {
    const int node = topology.node_of(rank);
    MirrorCopy& copy = copies_.try_emplace(rank, capacity).first->second;
    job.ranks.push_back(rank);
    job.recorders.push_back(copy.recorder());
    watched.push_back({rank, node, 0, topology.nodes[static_cast<size_t>(node)].host, copy.recorder(), false});
  }
  return watched;
}

std::string Mirrors::take(const RankWatch& watch, size_t source, size_t events) {
  const WatchedRank& rank = watch.ranks()[source];
  return sources_[source].take(rank.process, mirror_all_ ? SIZE_MAX : events, rank.kernel);
}

std::vector<std::pair<int, std::string>> Mirrors::news(RankWatch& watch, bool last) {
  std::vector<std::pair<int, std::string>> news = std::exchange(last_news_, {});
  if (sources_.empty()) return news;
  const uint64_t now = now_ns();
  const bool sampled = now >= next_sample_ns_;
  if (sampled) next_sample_ns_ = now + kSampleEveryNs;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (last || sampled || mirror_all_ || sources_[i].has_steps())
      news.emplace_back(ranks_[i], take(watch, i, sampled ? kSample : 0));
  return news;
}

void Mirrors::put(RankWatch& watch, int rank, std::string_view bytes) {
  const auto found = copies_.find(rank);
  if (found == copies_.end() || !found->second.put(bytes, now_ns())) return;
  for (WatchedRank& watched : watch.ranks()) {
    if (watched.rank != rank) continue;
    watched.pid = found->second.pid();
    watched.process = found->second.process();
    watched.kernel = found->second.kernel();
  }
}

void Mirrors::freeze(const RankWatch& watch) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    sources_[i].freeze();
    last_news_.emplace_back(ranks_[i], take(watch, i, kKeptEvents));
  }
}

}  // namespace prun
