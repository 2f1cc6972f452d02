#include "exec/batch/sample_source.h"

namespace prun {

std::unique_ptr<SampleSource> make_sample_source(const SourceContext& context) {
  const std::string& kind = context.source.kind;
  if (kind == "index") return make_index_source(context);
  if (kind == "random") return make_random_source(context);
  if (kind == "arrays") return make_arrays_source(context);
  if (kind == "feed") return make_feed_source(context);
  return make_tokens_source(context);
}

}  // namespace prun
