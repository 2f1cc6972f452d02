// Maps of notes under one lock. The last reader of an entry erases it.
#include "board.h"

#include <algorithm>

namespace prun::nccl {
namespace {

// Messages that a rank sent through NCCL before it left may still arrive.
constexpr auto kLostGrace = std::chrono::milliseconds(50);

}  // namespace

void Board::deliver(int from, const Note& note) {
  std::lock_guard lock(mutex_);
  heard_[from] = Clock::now();
  switch (note.kind) {
    case Note::call:
      calls_[{note.key, from}][note.sequence] = {note.sequence, note.fingerprint, note.count};
      [[fallthrough]];
    case Note::here: {
      uint64_t& latest = called_[{note.key, from}];
      latest = std::max(latest, note.sequence + 1);
      break;
    }
    case Note::size: {
      Lane& lane = lanes_[{from, note.lane}];
      lane.bytes[lane.arrived++] = note.count;
      break;
    }
    case Note::want:
      wants_[note.key].insert(from);
      break;
    case Note::go:
      gos_[note.key] = note;
      break;
    default:
      break;
  }
  ++news_;
  changed_.notify_all();
}

void Board::lose(int rank) {
  std::lock_guard lock(mutex_);
  if (!lost_[rank]) lost_[rank] = Clock::now();
  ++news_;
  changed_.notify_all();
}

std::optional<Record> Board::call(uint64_t key, int rank, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto calls = calls_.find({key, rank});
  if (calls == calls_.end()) return std::nullopt;
  const auto found = calls->second.find(sequence);
  return found == calls->second.end() ? std::nullopt : std::optional(found->second);
}

bool Board::has_called(uint64_t key, int rank, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto latest = called_.find({key, rank});
  return latest != called_.end() && latest->second > sequence;
}

void Board::forget_call(uint64_t key, int rank, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto calls = calls_.find({key, rank});
  if (calls != calls_.end()) calls->second.erase(sequence);
}

void Board::forget(uint64_t key) {
  std::lock_guard lock(mutex_);
  calls_.erase(calls_.lower_bound({key, 0}), calls_.upper_bound({key, static_cast<int>(lost_.size())}));
  called_.erase(called_.lower_bound({key, 0}), called_.upper_bound({key, static_cast<int>(lost_.size())}));
}

uint64_t Board::expect(int peer, int lane) {
  std::lock_guard lock(mutex_);
  return lanes_[{peer, lane}].expected++;
}

std::optional<uint64_t> Board::bytes_of(int peer, int lane, uint64_t number) {
  std::lock_guard lock(mutex_);
  const Lane& messages = lanes_[{peer, lane}];
  const auto found = messages.bytes.find(number);
  return found == messages.bytes.end() ? std::nullopt : std::optional(found->second);
}

void Board::forget_message(int peer, int lane, uint64_t number) {
  std::lock_guard lock(mutex_);
  lanes_[{peer, lane}].bytes.erase(number);
}

bool Board::all_want(uint64_t key, const std::vector<int>& ranks, int& missing) {
  std::lock_guard lock(mutex_);
  const std::set<int>& wants = wants_[key];
  for (int rank : ranks) {
    missing = rank;
    if (wants.count(rank) == 0) return false;
  }
  wants_.erase(key);
  return true;
}

std::optional<Note> Board::take_go(uint64_t key) {
  std::lock_guard lock(mutex_);
  const auto found = gos_.find(key);
  if (found == gos_.end()) return std::nullopt;
  const Note note = found->second;
  gos_.erase(found);
  return note;
}

int Board::lost_among(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  for (int rank : ranks) {
    const auto& since = lost_[rank];
    if (since && Clock::now() - *since > kLostGrace) return rank;
  }
  return -1;
}

int Board::silent_among(const std::vector<int>& ranks, int me, std::chrono::seconds so_long) {
  std::lock_guard lock(mutex_);
  for (int rank : ranks) {
    const size_t which = static_cast<size_t>(rank);
    if (rank != me && !lost_[which] && Clock::now() - heard_[which] > so_long) return rank;
  }
  return -1;
}

void Board::wait(std::chrono::microseconds at_most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, at_most, [&, seen = news_] { return news_ != seen; });
}

void Board::wake() {
  std::lock_guard lock(mutex_);
  ++news_;
  changed_.notify_all();
}

}  // namespace prun::nccl
