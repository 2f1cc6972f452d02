#include "exec/batch/sample_source.h"

#include "base/error.h"

namespace prun {

std::vector<int64_t> SampleSource::shares(int64_t, int64_t) { PRUN_CHECK(false, "this data has no documents"); }

std::unique_ptr<SampleSource> make_sample_source(const SourceContext& context) {
  const std::string& kind = context.source.kind;
  if (kind == "index") return make_index_source(context);
  if (kind == "random") return make_random_source(context);
  if (kind == "arrays") return make_arrays_source(context);
  if (kind == "feed") return make_feed_source(context);
  if (context.source.capacity > 0) return make_documents_source(context);
  return make_tokens_source(context);
}

}  // namespace prun
