// Ops access device memory; only transfers access host memory: load and save_state read there, store writes there.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/view.h"

namespace prun::verify {

void spaces_are_kept(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    const bool host =
        std::ranges::any_of(body.program->buffers, [](const Buffer& b) { return b.space == Space::host; });
    for (const OpRef ref : body.order.sequence()) {
      const Op& op = body.op(ref);
      if (!host && !op.is(ops::load) && !op.is(ops::save_state) && !op.is(ops::store)) continue;  // no host memory
      const auto expect = [&](const std::vector<TensorId>& ids, Space space, const char* does) {
        for (const TensorId id : ids) {
          const Tensor& tensor = body.program->tensors[id];
          if (body.program->buffers[tensor.buffer].space == space) continue;
          findings.add("wrong memory",
                       fmt::format("{}{} {} '{}', which is in the {} memory", body.where(), body.describe(ref), does,
                                   tensor.name, space == Space::host ? "device's" : "host's"),
                       op.site);
        }
      };
      expect(op.reads, op.is(ops::load) || op.is(ops::save_state) ? Space::host : Space::device, "reads");
      expect(op.writes, op.is(ops::store) ? Space::host : Space::device, "writes");
    }
  }
}

}  // namespace prun::verify
