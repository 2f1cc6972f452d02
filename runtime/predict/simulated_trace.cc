// Copies the clock's spans into flight recorders like those of ranks, so that only one writer implements the format.
#include "predict/simulated_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "watch/trace.h"

namespace prun {
namespace {

constexpr uint64_t kBegin = 1000000;  // a trace has no event at time 0

uint64_t nanoseconds(double seconds) { return kBegin + static_cast<uint64_t>(std::llround(seconds * 1e9)); }

using Memory = std::unique_ptr<std::byte[]>;

Memory recorded(const Program& program, const simulate::ClassResult& of) {
  size_t most = 1;
  for (const Stream& stream : program.step().streams) most = std::max(most, stream.ops.size());
  const uint64_t capacity = std::bit_ceil(most);
  Memory memory(new std::byte[recorder_bytes(capacity)]);
  std::memset(memory.get(), 0, recorder_bytes(capacity));
  auto* header = new (memory.get()) RecorderHeader();
  header->capacity = capacity;
  for (const simulate::OpSpan& span : of.spans) {
    if (span.of_step_before) continue;
    const uint64_t at = header->stream[span.op.stream.index()].written++;
    recorder_ring(header, span.op.stream.index())[at] = {0, static_cast<uint32_t>(span.op.index),
                                                         nanoseconds(span.ready), nanoseconds(span.begin),
                                                         nanoseconds(span.end)};
  }
  return memory;
}

}  // namespace

void write_simulated_trace(const std::string& path, const Job& job, const simulate::Simulation& simulation) {
  std::vector<Memory> memory;
  std::vector<int> ranks;
  std::vector<RecorderHeader*> recorders;
  size_t events = 1;
  for (const simulate::ClassResult& of : simulation.classes) {
    memory.push_back(recorded(job.program(of.first_rank), of));
    ranks.push_back(of.first_rank);
    recorders.push_back(reinterpret_cast<RecorderHeader*>(memory.back().get()));
    events += of.spans.size();
  }
  Trace trace(path, {}, events);
  trace.begin(job, ranks, recorders);
  trace.collect();
  trace.finish();
  if (const std::string failure = trace.file().failure(); !failure.empty())
    throw usage_error(fmt::format("cannot write the trace to {}: {}", path, failure));
}

}  // namespace prun
