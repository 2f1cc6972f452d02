// Packed documents before launch: what attention inside them costs, and errors that would else appear after hours.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/packed_documents.h"
#include "ir/batch_inputs.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int64_t kSampledTokens = 1 << 24;  // of which the documents are measured; all of them could be terabytes

// Returns the documents' part of the pairs of a query and a key in a stream, Σ length² / (Σ length · capacity).
// 1 = unknown: a description of a plan needs no files.
double part_of_pairs(const Data& data) try {
  DataSource sampled = data;
  if (sampled.count == 0 || sampled.count > kSampledTokens) sampled.count = kSampledTokens;
  const DataFiles files(data, "");
  DocumentScan scan(files, sampled);
  double tokens = 0, pairs = 0;
  while (const std::optional<DocumentRun> document = scan.next()) {
    const int64_t whole = document->length / data.capacity, rest = document->length % data.capacity;
    const bool truncated = whole > 0 && data.long_documents == "truncate";
    const double capacity = static_cast<double>(data.capacity), full = truncated ? 1 : static_cast<double>(whole),
                 last = truncated ? 0 : static_cast<double>(rest);
    tokens += full * capacity + last, pairs += full * capacity * capacity + last * last;
  }
  return tokens > 0 ? pairs / (tokens * static_cast<double>(data.capacity)) : 1;
} catch (const Error&) {
  return 1;
}

}  // namespace

void count_documents(Plan& plan) {
  if (plan.data.capacity == 0 || plan.data.files.empty()) return;
  const auto attends = [](const Node& node) { return node.op == &ops::attend && node.attrs.integer("spans") != 0; };
  if (std::none_of(plan.graph.nodes.begin(), plan.graph.nodes.end(), attends)) return;
  const double part = part_of_pairs(plan.data);
  for (Node& node : plan.graph.nodes)
    if (attends(node)) node.attrs.set("part_of_pairs", part);
}

void check_documents(const Data& data, const std::vector<IdLimit>& limits) {
  if (data.capacity == 0 || data.files.empty()) return;
  const DataFiles files(data, "");
  DocumentScan scan(files, data);
  int64_t longest = 0, number = 0;
  while (const std::optional<DocumentRun> document = scan.next()) {
    longest = std::max(longest, std::min(document->length, data.capacity));
    if (!scan.found_end()) break;
    try {
      require_short(*document, number++, files, data);
    } catch (const Error& error) {
      throw plan_error("data: " + error.message(), data.site);
    }
  }
  if (!scan.found_end()) {
    const int64_t more = std::ssize(data.files) - 1;
    throw plan_error(
        fmt::format("data: no document ends with {} (eot): it is nowhere in {}{}", data.document_end,
                    files.place(0).path, more > 0 ? fmt::format(" and {} more", counted(more, "file")) : ""),
        data.site);
  }
  for (const IdLimit& limit : limits)
    if (limit.input == kPositions && limit.size < longest)
      throw plan_error(fmt::format("data: the longest document has {}, and {} ({}): positions count from 0 in each "
                                   "document, so it needs {}",
                                   counted(longest, "token"), limit.table, limit.site.text(), counted(longest, "row")),
                       data.site);
}

}  // namespace prun
