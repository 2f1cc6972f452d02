// A word may be a whole text if a tokenizer does not split (Llama 2's), so merges wait in a priority queue by rank;
// entries whose parts have changed are skipped.
#include "tokenizer/byte_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <queue>
#include <tuple>

#include "base/error.h"

namespace prun {
namespace {

// Maps a character to its byte, or -1. Printable bytes map to themselves, the others to 256 and up.
std::array<int, 512> make_bytes() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    bytes[itself ? b : next++] = b;
  }
  return bytes;
}

}  // namespace

std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const std::array<int, 512> kBytes = make_bytes();
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned character = static_cast<unsigned char>(text[i]);
    if (character >= 0x80) {  // valid characters have at most two bytes in UTF-8
      if (character >= 0xe0 || i + 1 == text.size()) return std::nullopt;
      character = (character & 0x1f) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f);
    }
    if (character >= kBytes.size() || kBytes[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[character]);
  }
  return bytes;
}

BytePairs::BytePairs(std::map<std::string, int32_t> ids, const std::vector<std::pair<std::string, std::string>>& merges,
                     const Rules& rules)
    : ids_(std::move(ids)), rules_(rules) {
  const auto id_of = [&](const std::string& bytes) {
    const auto found = ids_.find(bytes);
    if (found == ids_.end()) throw usage_error(fmt::format("'{}' of its merges is not in its vocabulary", bytes));
    return found->second;
  };
  for (const auto& [left, right] : merges)
    merges_.try_emplace({id_of(left), id_of(right)}, Merge{std::ssize(merges_), id_of(left + right)});
}

std::optional<std::vector<int32_t>> BytePairs::bytes_of(const std::string& character) const {
  std::vector<int32_t> ids;
  for (const char c : character) {
    const auto found = ids_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
    if (found == ids_.end()) return std::nullopt;
    ids.push_back(found->second);
  }
  return ids;
}

// Unknown characters are pending until a known one ends their run, as in tokenizers' models/bpe/model.rs.
std::vector<int32_t> BytePairs::units(const std::string& word) const {
  std::vector<int32_t> units;
  bool waits = false;
  const auto end_run = [&] {
    if (waits) units.push_back(*rules_.unknown);
    waits = false;
  };
  for (size_t i = 0, length = 1; i < word.size(); i += length) {
    const unsigned char first = static_cast<unsigned char>(word[i]);
    length = !rules_.characters || first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    const std::string unit = word.substr(i, length);
    if (const auto found = ids_.find(unit); found != ids_.end()) {
      end_run();
      units.push_back(found->second);
      continue;
    }
    if (rules_.byte_fallback)
      if (const auto bytes = bytes_of(unit)) {
        units.insert(units.end(), bytes->begin(), bytes->end());
        continue;
      }
    if (!rules_.unknown)
      throw usage_error(rules_.characters ? fmt::format("the tokenizer has no token for '{}'", unit)
                                          : fmt::format("the tokenizer has no token for the byte {:#04x}", first));
    if (!rules_.fuse_unknown) end_run();
    waits = true;
  }
  end_run();
  return units;
}

void BytePairs::append(const std::string& word, std::vector<int32_t>& ids) const {
  if (const auto whole = ids_.find(word); rules_.whole_words && whole != ids_.end()) {
    ids.push_back(whole->second);
    return;
  }
  std::vector<int32_t> parts = units(word);
  const size_t end = parts.size();
  // Links each part to its neighbours; a part merged into its predecessor is -1.
  std::vector<size_t> next(end), before(end);
  for (size_t i = 0; i < end; ++i) next[i] = i + 1, before[i] = i - 1;
  using Waiting = std::tuple<int64_t, size_t, int32_t, int32_t>;  // the merge's rank, its position and both parts
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue;
  const auto add = [&](size_t at) {
    if (at >= end || next[at] >= end) return;
    const auto found = merges_.find({parts[at], parts[next[at]]});
    if (found != merges_.end()) queue.emplace(found->second.rank, at, parts[at], parts[next[at]]);
  };
  for (size_t i = 0; i < end; ++i) add(i);
  while (!queue.empty()) {
    const auto [rank, at, left, right] = queue.top();
    queue.pop();
    const size_t other = next[at];
    if (parts[at] != left || other >= end || parts[other] != right) continue;
    parts[at] = merges_.at({left, right}).id;
    parts[other] = -1;
    next[at] = next[other];
    if (next[at] < end) before[next[at]] = at;
    add(before[at]);
    add(at);
  }
  std::ranges::copy_if(parts, std::back_inserter(ids), [](int32_t id) { return id >= 0; });
}

}  // namespace prun
