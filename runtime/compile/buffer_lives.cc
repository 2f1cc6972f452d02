// Finds live ranges in one walk over the ops of a body, and compares them by the vector clocks of Order.
#include "compile/buffer_lives.h"

#include <algorithm>
#include <climits>

namespace prun {
namespace {

void touch(Life& life, StreamId stream, int index) {
  if (life.streams.empty() || life.streams.back().stream != stream) life.streams.push_back({stream, index, index});
  life.streams.back().last = index;
}

}  // namespace

BufferLives::BufferLives(const Program& program, const Body& body) : body_(body), order_(body) {
  lives_.resize(program.buffers.size());
  for (StreamId s : body.streams.ids())
    for (int i = 0; i < ops_on(s); ++i)
      for (const std::vector<TensorId>* ids : {&body.streams[s].ops[i].reads, &body.streams[s].ops[i].writes})
        for (TensorId tensor : *ids) touch(lives_[program.tensors[tensor].buffer], s, i);
  positions_.resize(body.streams.size());
  for (StreamId s : body.streams.ids()) positions_[s].assign(ops_on(s), 0);
  for (int i = 0; i < std::ssize(order_.sequence()); ++i)
    positions_[order_.sequence()[i].stream][order_.sequence()[i].index] = i;
  find_successors();
  for (Life& life : lives_)
    if (life.any()) find_instants(life);
}

Life BufferLives::together(const std::vector<const Life*>& lives) const {
  Life all;
  for (const Life* life : lives)
    for (const StreamLife& on : life->streams) {
      const auto known = std::find_if(all.streams.begin(), all.streams.end(),
                                      [&](const auto& other) { return other.stream == on.stream; });
      if (known == all.streams.end()) {
        all.streams.push_back(on);
      } else {
        known->first = std::min(known->first, on.first);
        known->last = std::max(known->last, on.last);
      }
    }
  find_instants(all);
  return all;
}

bool BufferLives::precedes(const Life& a, const Life& b) const {
  for (const StreamLife& of_a : a.streams)
    for (const StreamLife& of_b : b.streams)
      if (!order_.before({of_a.stream, of_a.last}, {of_b.stream, of_b.first})) return false;
  return true;
}

int BufferLives::ops_on(StreamId s) const {
  return s < body_.streams.next() ? static_cast<int>(std::ssize(body_.streams[s].ops)) : 0;
}

// Both indices only grow along their streams.
void BufferLives::find_successors() {
  successor_.resize(body_.streams.size());
  for (const StreamId from : body_.streams.ids()) {
    successor_[from].resize(body_.streams.size());
    for (const StreamId to : body_.streams.ids()) {
      std::vector<int>& of_ops = successor_[from][to];
      of_ops.reserve(ops_on(from));
      for (int i = 0, next = 0; i < ops_on(from); ++i) {
        while (next < ops_on(to) && !order_.before({from, i}, {to, next})) ++next;
        of_ops.push_back(next);
      }
    }
  }
}

// Returns the index of the first op of the stream that begins after the buffer is dead.
int BufferLives::dead_from(const Life& life, StreamId stream) const {
  int dead = 0;
  for (const StreamLife& on : life.streams) dead = std::max(dead, successor_[on.stream][stream][on.last]);
  return dead;
}

// Returns the number of ops of the compute stream that have ended before the buffer's first access.
int BufferLives::ended_before(const Life& life) const {
  int ended = ops_on(0);
  for (const StreamLife& on : life.streams) ended = std::min(ended, order_.ended_before({on.stream, on.first}, 0));
  return ended;
}

void BufferLives::find_core(Life& life) const {
  int first = ops_on(0), last = -1;
  for (const StreamLife& on : life.streams) {
    const bool computes = on.stream == 0;
    first = std::min(first, computes ? on.first : successor_[on.stream][0][on.first]);
    last = std::max(last, computes ? on.last : order_.ended_before({on.stream, on.last}, 0) - 1);
  }
  life.core_first = 2 * first + 1;
  life.core_last = 2 * last + 1;
}

void BufferLives::find_instants(Life& life) const {
  if (life.computes_only()) {
    life.first = 2 * life.streams.front().first + 1;
    life.last = 2 * life.streams.front().last + 1;
    return;
  }
  life.first = 2 * ended_before(life);
  life.last = 2 * dead_from(life, 0);
  find_core(life);
  life.first_position = INT_MAX;
  for (const StreamLife& on : life.streams)
    life.first_position = std::min(life.first_position, positions_[on.stream][on.first]);
  for (StreamId s : body_.streams.ids())
    if (const int dead = dead_from(life, s); dead > 0)
      life.last_position = std::max(life.last_position, positions_[s][dead - 1]);
  life.last_position = std::max(life.last_position, life.first_position);
}

}  // namespace prun
