// Options, results, and what a rank knows of its peers' memory and lives.
#include "context.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace prun::shm {

std::string parse_options(const char* text, Options& options) {
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = word.substr(std::min(equals + 1, word.size()));
    size_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool good = error == std::errc() && end == value.data() + value.size();
    if (key == "small" && good && number >= 64 && number <= kSlotBytes)
      options.small = number;
    else if (key == "chunk" && good && number >= 4096 && number <= kMaxChunk)
      options.chunk = number / 64 * 64;
    else if (key == "huge" && good && number <= 1)
      options.huge = number == 1;
    else
      return std::string(word);
  }
  return "";
}

prun_status fail(prun_result* result, prun_status status, int culprit, const char* format, ...) {
  if (!result || result->size < sizeof(prun_result)) return status;
  result->culprit = culprit;
  va_list args;
  va_start(args, format);
  std::vsnprintf(result->message, sizeof result->message, format, args);
  va_end(args);
  return status;
}

prun_status report_aborted(prun_result* result) { return fail(result, PRUN_EABORTED, -1, "aborted"); }

prun_status report_lost(Context& c, int lost, RankState how, prun_result* result) {
  const int rank = c.peers[static_cast<size_t>(lost)].rank;
  switch (how) {
    // It aborted because of something else: naming it would blame a victim.
    case RankState::aborted:
      return fail(result, PRUN_EABORTED, -1, "rank #%d aborted", rank);
    case RankState::closed:
      return fail(result, PRUN_EPEER, rank, "rank #%d has closed its transport", rank);
    case RankState::running:
      break;
  }
  return fail(result, PRUN_EPEER, rank, "the process of rank #%d is gone", rank);
}

Place Context::place_of(const void* ptr, size_t bytes) const {
  const auto* p = static_cast<const std::byte*>(ptr);
  for (size_t i = 0; i < arenas.size(); i++) {
    const Arena& a = arenas[i];
    if (a.shared && p >= a.start && p < a.start + a.bytes && bytes <= static_cast<size_t>(a.start + a.bytes - p))
      return {static_cast<int32_t>(i), 0, static_cast<uint64_t>(p - a.mapping.base)};
  }
  return {-1, 0, 0};
}

std::byte* Context::address_of(const Peer& peer, const Place& place) const {
  return peer.arenas[static_cast<size_t>(place.arena)].base + place.offset;
}

int Context::lost_peer(const std::vector<int>& among, RankState& how) {
  std::vector<pollfd> polls;
  for (int i : among) polls.push_back({i == me ? -1 : peers[static_cast<size_t>(i)].socket, POLLIN | POLLRDHUP, 0});
  poll(polls.data(), polls.size(), 0);
  for (size_t i = 0; i < among.size(); i++) {
    if (among[i] == me) continue;
    how = static_cast<RankState>(peers[static_cast<size_t>(among[i])].header().state.load(std::memory_order_acquire));
    if (polls[i].revents != 0 || how != RankState::running) return among[i];
  }
  return -1;
}

}  // namespace prun::shm
