// Surprising fact: a word is short, since texts are split before, so looking at all pairs for each merge is fast
// enough.
#include "tokenizer/byte_pairs.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace prun {
namespace {

// By character: the byte that it stands for, or -1. Printable bytes stand for themselves, the others for 256 and on.
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
    if (character >= 0x80) {  // those that are used have two bytes in UTF-8 at most
      if (character >= 0xe0 || i + 1 == text.size()) return std::nullopt;
      character = (character & 0x1f) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f);
    }
    if (character >= kBytes.size() || kBytes[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[character]);
  }
  return bytes;
}

BytePairs::BytePairs(std::map<std::string, int32_t> ids, const std::vector<std::pair<std::string, std::string>>& merges,
                     bool whole_words)
    : ids_(std::move(ids)), whole_words_(whole_words) {
  const auto id_of = [&](const std::string& bytes) {
    const auto found = ids_.find(bytes);
    if (found == ids_.end()) throw usage_error(fmt::format("'{}' of its merges is not in its vocabulary", bytes));
    return found->second;
  };
  for (const auto& [left, right] : merges)
    merges_.try_emplace({id_of(left), id_of(right)}, Merge{std::ssize(merges_), id_of(left + right)});
}

void BytePairs::append(const std::string& word, std::vector<int32_t>& ids) const {
  if (const auto whole = ids_.find(word); whole_words_ && whole != ids_.end()) {
    ids.push_back(whole->second);
    return;
  }
  std::vector<int32_t> parts;
  for (const char c : word) {
    const auto found = ids_.find(std::string(1, c));
    if (found == ids_.end())
      throw usage_error(fmt::format("the tokenizer has no token for the byte {:#04x}", static_cast<unsigned char>(c)));
    parts.push_back(found->second);
  }
  while (parts.size() > 1) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = merges_.find({parts[i], parts[i + 1]});
      if (found == merges_.end() || (best != nullptr && best->rank <= found->second.rank)) continue;
      best = &found->second;
      at = i;
    }
    if (best == nullptr) break;
    parts[at] = best->id;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  ids.insert(ids.end(), parts.begin(), parts.end());
}

}  // namespace prun
