// The first member measures and sends the number of rounds; the other follows.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "doctor/check.h"

namespace prun::doctor {
namespace {

double steady() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double wall() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

struct Pair {
  Communicator& group;
  int one, other;
  char* buffer;

  bool measures() const { return group.index() == one; }
  int peer() const { return measures() ? other : one; }
  void send(int64_t bytes) const { group.send_recv(peer(), buffer, bytes, -1, nullptr, 0); }
  void receive(int64_t bytes) const { group.send_recv(-1, nullptr, 0, peer(), buffer, bytes); }
  void round(int64_t bytes) const {
    if (measures()) send(bytes);
    receive(bytes);
    if (!measures()) send(bytes);
  }
  double timed_round(int64_t bytes) const {
    const double begin = steady();
    round(bytes);
    return steady() - begin;
  }
  int64_t agreed(int64_t count) const {
    std::memcpy(buffer, &count, sizeof count);
    if (measures())
      send(sizeof count);
    else
      receive(sizeof count);
    std::memcpy(&count, buffer, sizeof count);
    return count;
  }
};

double median_one_way(const Pair& pair, int64_t bytes, double budget_s, int64_t least, int64_t most) {
  for (int i = 0; i < 3; ++i) pair.round(bytes);
  const double first = std::max(pair.timed_round(bytes), 1e-7);
  const int64_t rounds = pair.agreed(std::clamp(static_cast<int64_t>(budget_s / first), least, most));
  std::vector<double> times;
  for (int64_t i = 0; i < rounds; ++i) times.push_back(pair.timed_round(bytes));
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2] / 2;
}

}  // namespace

double pair_latency(Communicator& group, int one, int other, char* buffer) {
  return median_one_way({group, one, other, buffer}, 8, 0.1, 20, 2000);
}

double pair_bandwidth(Communicator& group, int one, int other, char* buffer) {
  return static_cast<double>(kPairBytes) / median_one_way({group, one, other, buffer}, kPairBytes, 0.2, 3, 50);
}

ClockOffset clock_offset(Communicator& group, int one, int other, char* buffer) {
  const Pair pair{group, one, other, buffer};
  ClockOffset best{0, 1e9};
  for (int i = 0; i < 30; ++i) {
    const double begin = wall(), start = steady();
    if (pair.measures()) pair.send(sizeof(double));
    pair.receive(sizeof(double));
    if (!pair.measures()) {
      const double here = wall();
      std::memcpy(buffer, &here, sizeof here);
      pair.send(sizeof(double));
      continue;
    }
    const double took = steady() - start;
    double there = 0;
    std::memcpy(&there, buffer, sizeof there);
    if (took / 2 < best.error) best = {there - (begin + took / 2), took / 2};
  }
  return best;
}

}  // namespace prun::doctor
