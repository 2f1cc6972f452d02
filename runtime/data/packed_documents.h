// Documents packed whole into streams of a fixed capacity, by best-fit decreasing (Ding et al. 2024, "Fewer Truncations
// Improve Language Modeling").
//
// Surprising fact: the packing is a function of the files and the seed, so that each rank computes all of it, and a
// checkpoint stores nothing but the number of consumed streams. The index takes 20 bytes of memory per document.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/data_files.h"
#include "ir/graph.h"
#include "ir/plan.h"

namespace prun {

// A document, or a piece of a long one: tokens [first, first + length) of the files.
struct DocumentRun {
  int64_t first = 0, length = 0;
};

// Reads the documents of the part that the source reads. A document ends after DataSource::document_end, or with the
// part, so that documents continue from file to file.
class DocumentScan {
 public:
  DocumentScan(const DataFiles& files, const DataSource& source);
  std::optional<DocumentRun> next();             // nullopt = the part has ended
  bool found_end() const { return found_end_; }  // whether the part has had an end token so far

 private:
  const DataFiles& files_;
  int64_t document_end_, at_, buffered_;  // token that ends a document; next token; first buffered token
  int64_t end_ = 0, count_ = 0;           // end of the part; number of buffered tokens
  bool found_end_ = false;
  std::vector<std::byte> buffer_;
};

class PackedDocuments {
 public:
  // Reads all tokens once. Throws usage_error for a document that is longer than the capacity under the rule "error".
  PackedDocuments(const DataFiles& files, const DataSource& source, uint64_t seed);

  int64_t streams() const { return static_cast<int64_t>(begin_.size()) - 1; }
  // Returns the documents of a stream, in the order of the files; together they have at most `capacity` tokens.
  std::span<const DocumentRun> stream(int64_t index) const;
  int64_t longest() const { return longest_; }  // tokens of the longest document
  double padding() const;                       // padding tokens / all tokens of the streams

 private:
  int64_t capacity_ = 0, longest_ = 0, tokens_ = 0;
  std::vector<DocumentRun> documents_;  // stream by stream
  std::vector<int64_t> begin_;          // of each stream in documents_, and the end
};

// Throws usage_error if `document` is longer than the capacity and the rule forbids it. `number` counts from 0.
void require_short(const DocumentRun& document, int64_t number, const DataFiles& files, const DataSource& source);

// Reads the documents of packed data before launch. Throws plan_error if the token that ends them is missing, if one is
// longer than the capacity under the rule "error", or if a table of positions has too few rows.
void check_documents(const Data& data, const std::vector<IdLimit>& limits);

// Gives attention inside documents the documents' part of all pairs of tokens, by which its FLOPs are counted. Reads at
// most 2^24 tokens of the plan's data.
void count_documents(Plan& plan);

// Returns an order of the items in which every contiguous equal division of it has nearly equal costs: the items of any
// ranks and microbatches. It depends on the costs alone and not on the mesh.
std::vector<int64_t> balanced_order(const std::vector<double>& costs);

// Deals the items to `groups` groups of equal size and nearly equal costs. Returns the first group's items first, each
// group's in ascending order.
std::vector<int64_t> equal_groups(const std::vector<double>& costs, int64_t groups);

}  // namespace prun
