// The inputs that documents add to a stream of tokens: the position of a token in its document, and the run of tokens
// [begin, end) of its document in the stream. Tokens without a document (padding) are documents of one token.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/packed_documents.h"
#include "exec/batch/sample_source.h"

namespace prun {

// Inputs that context parallelism adds: the tokens that a causal attention of the token reads, and for each token of
// the stream its index among the tokens of all ranks, the first rank's first.
inline constexpr std::string_view kSeen = "documents.seen", kOrder = "documents.order";

class DocumentLayout {
 public:
  void clear(int64_t tokens) {
    begin_.clear(), end_.clear();
    tokens_ = tokens, cost_ = 0;
  }
  void add(int64_t length) {  // appends a document
    const int32_t begin = static_cast<int32_t>(begin_.size());
    begin_.insert(begin_.end(), length, begin);
    end_.insert(end_.end(), length, begin + static_cast<int32_t>(length));
    cost_ += static_cast<double>(length) * static_cast<double>(length);
  }
  void pad() {
    while (size() < tokens_) add(1);
  }
  int64_t size() const { return static_cast<int64_t>(begin_.size()); }
  double cost() const { return cost_; }  // Σ lengths², proportional to the work of attention
  bool ends_at(int64_t token) const { return end_[token] == token + 1; }

  // Divides the tokens over ranks, in chunks, so that causal attention costs about the same on all ranks. Returns the
  // tokens of the first rank first.
  std::vector<int64_t> shares(int64_t ranks) const {
    constexpr int64_t kMostChunks = 16;  // of a rank
    int64_t chunks = kMostChunks;
    while (size() % (ranks * chunks) != 0) --chunks;
    const int64_t count = ranks * chunks, chunk = size() / count;
    std::vector<double> costs(count, 0);
    for (int64_t t = 0; t < size(); ++t) costs[t / chunk] += static_cast<double>(t + 1 - begin_[t]);
    std::vector<int64_t> tokens;
    tokens.reserve(size());
    for (const int64_t c : equal_groups(costs, ranks))
      for (int64_t t = c * chunk; t < (c + 1) * chunk; ++t) tokens.push_back(t);
    return tokens;
  }

  static bool has(const BatchOutput& out) {
    return out.name == "positions" || out.name == "documents" || out.name == kSeen;
  }
  // Writes the rank's elements of such an input.
  void fill(const BatchOutput& out, int32_t* to) const {
    const bool positions = out.name == "positions", causal = out.name == kSeen;
    for (int64_t i = 0; i < out.per_sample; ++i) {
      const int64_t element = out.element(i), token = positions ? element : element / 2;
      if (positions)
        to[i] = static_cast<int32_t>(token) - begin_[token];
      else if (element % 2 == 0)
        to[i] = begin_[token];
      else
        to[i] = causal ? static_cast<int32_t>(token) + 1 : end_[token];
    }
  }

 private:
  int64_t tokens_ = 0;
  double cost_ = 0;
  std::vector<int32_t> begin_, end_;  // by token
};

}  // namespace prun
