// A program is well-formed: every id, offset and extent is in range.
//
// Surprising fact: only a bug in a pass or a damaged file produces these findings. They protect the other rules, which
// index without bounds checks.
#include <fmt/format.h>

#include "ir/recurs.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

constexpr const char* kMalformed = "malformed program";

void check_buffers(const Program& program, Findings& findings) {
  for (const Buffer& buffer : program.buffers) {
    const auto bad = [&](const std::string& what) {
      findings.add(kMalformed, fmt::format("buffer '{}' {}", buffer.name, what), buffer.site);
    };
    if (buffer.bytes < 0 || buffer.bytes % kAlignBytes != 0) {
      bad(fmt::format("has {} bytes, which is not a multiple of {}", buffer.bytes, kAlignBytes));
    }
    if (buffer.offset >= 0 && buffer.offset % kAlignBytes != 0) {
      bad(fmt::format("begins at byte {} of the arena, which is not a multiple of {}", buffer.offset, kAlignBytes));
    } else if (buffer.offset + buffer.bytes > arena_bytes(program, buffer.space)) {
      bad(fmt::format("ends at byte {} of an arena of {}", buffer.offset + buffer.bytes,
                      arena_bytes(program, buffer.space)));
    }
    if (buffer.pool < 0) continue;
    if (buffer.pool >= std::ssize(program.pools)) {
      bad(fmt::format("names pool {} of {}", buffer.pool, program.pools.size()));
      continue;
    }
    const Pool& pool = program.pools[buffer.pool];
    if (buffer.slot < 0 || buffer.slot >= pool.slots) {
      bad(fmt::format("names slot {} of {} in pool '{}'", buffer.slot, pool.slots, pool.name));
    } else if (buffer.bytes > pool.slot_bytes) {
      bad(fmt::format("of {} bytes is in a slot of {} in pool '{}'", buffer.bytes, pool.slot_bytes, pool.name));
    }
  }
}

void check_tensors(const Program& program, Findings& findings) {
  for (const Tensor& tensor : program.tensors) {
    if (!program.buffers.has(tensor.buffer)) {
      findings.add(
          kMalformed,
          fmt::format("tensor '{}' names buffer {} of {}", tensor.name, tensor.buffer.index(), program.buffers.size()),
          {});
      continue;
    }
    const Buffer& buffer = program.buffers[tensor.buffer];
    const int64_t end = tensor.byte_offset + tensor.bytes();
    if (tensor.byte_offset < 0 || end > buffer.bytes) {
      findings.add(kMalformed,
                   fmt::format("tensor '{}' covers bytes {}..{} of buffer '{}', which has {}", tensor.name,
                               tensor.byte_offset, end, buffer.name, buffer.bytes),
                   buffer.site);
    }
  }
}

void check_ops(const Program& program, const Body& body, Findings& findings) {
  for (const Stream& stream : body.streams) {
    for (size_t index = 0; index < stream.ops.size(); index++) {
      const Op& op = stream.ops[index];
      const auto bad = [&](const std::string& what) {
        findings.add(kMalformed,
                     fmt::format("{} ({}#{}) {}", op.def == nullptr ? "op" : op.def->name, stream.name, index, what),
                     op.site);
      };
      if (op.def == nullptr) bad("has no kind");
      for (const std::vector<TensorId>* ids : {&op.reads, &op.writes}) {
        for (const TensorId id : *ids) {
          if (!program.tensors.has(id)) {
            bad(fmt::format("names tensor {} of {}", id.index(), program.tensors.size()));
            continue;
          }
          const BufferId buffer = program.tensors[id].buffer;
          if (!program.buffers.has(buffer)) continue;  // reported above
          const Buffer& used = program.buffers[buffer];
          if (used.offset < 0) bad(fmt::format("uses buffer '{}', which has no place in the arena", used.name));
        }
      }
      if (op.def != nullptr && op.communicates() && op.axis != kWorld && !program.mesh.has(op.axis)) {
        bad(fmt::format("names axis '{}', which mesh {} has not", op.axis, program.mesh.text()));
      }
      for (const Edge& edge : op.waits) {
        const bool known =
            body.streams.has(edge.stream) && edge.index >= 0 && edge.index < std::ssize(body.streams[edge.stream].ops);
        if (!known)
          bad(fmt::format("waits for op {} of stream {}, which is not there", edge.index, edge.stream.index()));
      }
    }
  }
}

}  // namespace

void program_is_well_formed(const Job& job, Findings& findings) {
  std::vector<bool> used(job.classes.size(), false);
  for (const int id : job.class_of_rank) {
    if (id < 0 || id >= std::ssize(job.classes)) {
      findings.add(kMalformed, fmt::format("a rank is of class {} of {}", id, job.classes.size()), {});
    } else {
      used[id] = true;
    }
  }
  for (size_t id = 0; id < used.size(); id++) {
    if (!used[id]) findings.add(kMalformed, fmt::format("no rank is of class {}", id), {});
  }
  for (const Program& program : job.classes) {
    if (program.mesh.ranks() != std::ssize(job.class_of_rank)) {
      findings.add(kMalformed,
                   fmt::format("mesh {} has {} ranks, the job {}", program.mesh.text(), program.mesh.ranks(),
                               job.class_of_rank.size()),
                   {});
    }
    if (!(program.mesh == job.classes.front().mesh)) {
      findings.add(
          kMalformed,
          fmt::format("ranks disagree on the mesh: {} and {}", job.classes.front().mesh.text(), program.mesh.text()),
          {});
    }
    check_buffers(program, findings);
    check_tensors(program, findings);
    for (const Body& body : program.bodies) check_ops(program, body, findings);
    for (const Body& body : program.bodies)
      if (const std::string what = repeat_out_of_range(program, body); !what.empty())
        findings.add(kMalformed, fmt::format("the {} repeats with wrong {}", body.name, what), {});
  }
}

}  // namespace prun::verify
