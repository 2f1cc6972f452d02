// Names of the inputs that packed documents add to a batch (data/packed_documents.h).
#pragma once
#include <string_view>

namespace prun {

inline constexpr std::string_view kPositions = "positions";  // of a token in its document
inline constexpr std::string_view kDocuments = "documents";  // run of tokens of a token's document in the stream
// Context parallelism adds the run that a causal attention of the token reads, and for each token of the stream its
// index among the tokens of all ranks, the first rank's first.
inline constexpr std::string_view kSeen = "documents.seen", kOrder = "documents.order";

}  // namespace prun
