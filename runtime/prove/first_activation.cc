// Tries every way in which the mesh can split a dim, independently of the compiler, which may be wrong about a rank's
// part.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "device/element.h"
#include "kernels/devices.h"
#include "prove/compare.h"
#include "prove/explain.h"

namespace prun {
namespace {

constexpr size_t kMostSplits = 64;  // per tensor

struct Seen {
  Op op;
  Shape shape;
  std::vector<double> values;
};
using SeenByName = std::map<std::string, Seen>;

// The activations that a body computes on each rank, and their names in rank 0's order of execution.
struct ForwardValues {
  std::vector<SeenByName> ranks;
  std::vector<std::string> order;
};

ForwardValues watch(const Job& job, VirtualOptions options, BodyId body) {
  ForwardValues forward;
  forward.ranks.resize(job.class_of_rank.size());
  options.after = [&](const RankMemory& memory, const Op& op) {
    if (memory.body != body || op.phase != Phase::forward) return;
    for (const TensorId id : op.writes) {
      const Tensor& tensor = memory.program->tensors[id];
      if (tensor.dtype != Dtype::f64 || memory.program->buffers[tensor.buffer].role != Role::activation) continue;
      Seen seen{op, tensor.shape, {}};
      for (int64_t i = 0; i < tensor.count(); i++)
        seen.values.push_back(load_element(tensor.dtype, memory.data(id), i));
      if (forward.ranks[memory.rank].insert_or_assign(tensor.name, std::move(seen)).second && memory.rank == 0)
        forward.order.push_back(tensor.name);
    }
  };
  run_virtual_ranks(job, *open_device("reference"), options);
  return forward;
}

// Indices along one dim of the whole, by element of the rank's part; -1 = padding.
using Places = std::vector<int64_t>;

class Matcher {
 public:
  Matcher(const Twins& twins) : mesh_(twins.small.mesh) {
    for (const Value& value : twins.small.graph.values)
      if (value.blocks.size() > 1) blocks_.insert(value.blocks);
  }

  // Returns the parts of `whole` that `rank` may hold as a tensor of that shape.
  std::vector<std::vector<double>> parts(const Seen& whole, const Shape& shape, int rank) const {
    std::vector<std::vector<Places>> choices;  // by dim
    size_t count = 1;
    if (shape.size() != whole.shape.size()) return {};
    for (size_t d = 0; d < shape.size(); d++) {
      choices.push_back(splits(shape[d], whole.shape[d], rank));
      count *= choices.back().size();
    }
    std::vector<std::vector<double>> all;
    for (size_t choice = 0; choice < std::min(count, kMostSplits); choice++) {
      std::vector<const Places*> places;
      for (size_t d = 0, rest = choice; d < shape.size(); rest /= choices[d++].size())
        places.push_back(&choices[d][rest % choices[d].size()]);
      all.push_back(part(whole, shape, places));
    }
    return all;
  }

 private:
  std::vector<Places> splits(int64_t size, int64_t whole, int rank) const {
    std::vector<Places> all;
    const auto add = [&](auto place) {
      Places places;
      for (int64_t i = 0; i < size; i++) places.push_back(place(i));
      all.push_back(std::move(places));
    };
    if (size == whole) add([](int64_t i) { return i; });
    const std::vector<Axis>& axes = mesh_.axes();
    for (size_t subset = 1; subset < (size_t{1} << axes.size()) && size < whole; subset++) {
      int64_t index = 0, of = 1;
      for (size_t a = 0; a < axes.size(); a++) {
        if ((subset >> a & 1) == 0) continue;
        index = index * axes[a].size + mesh_.index(axes[a].name, rank);
        of *= axes[a].size;
      }
      if (of == 1 || (whole + of - 1) / of != size) continue;
      add([&](int64_t i) { return index * size + i < whole ? index * size + i : -1; });
      // Adds two chunks, one from each end (context_parallel.cc).
      const int64_t chunk = size / 2;
      if (whole % (2 * of) == 0)
        add([&](int64_t i) { return i < chunk ? index * chunk + i : (2 * of - 1 - index) * chunk + i - chunk; });
      for (const std::vector<int64_t>& blocks : blocks_) add_blocks(blocks, index, of, size, whole, all);
    }
    return all;
  }

  // Splits every block separately.
  static void add_blocks(const std::vector<int64_t>& blocks, int64_t index, int64_t of, int64_t size, int64_t whole,
                         std::vector<Places>& all) {
    Places places;
    int64_t begin = 0;
    for (const int64_t block : blocks) {
      if (block % of != 0) return;
      for (int64_t i = 0; i < block / of; i++) places.push_back(begin + index * (block / of) + i);
      begin += block;
    }
    if (begin == whole && std::ssize(places) == size) all.push_back(std::move(places));
  }

  static std::vector<double> part(const Seen& whole, const Shape& shape, const std::vector<const Places*>& places) {
    std::vector<double> values;
    for (int64_t i = 0, count = element_count(shape); i < count; i++) {
      int64_t at = 0, rest = i, stride = 1;
      bool padding = false;
      for (size_t d = shape.size(); d-- > 0;) {
        const int64_t place = (*places[d])[rest % shape[d]];
        padding = padding || place < 0;
        at += place * stride;
        stride *= whole.shape[d];
        rest /= shape[d];
      }
      values.push_back(padding ? 0 : whole.values[at]);
    }
    return values;
  }

  const Mesh& mesh_;
  std::set<std::vector<int64_t>> blocks_;
};

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest > 0 ? largest : 1;
}

bool any_near(const std::vector<std::vector<double>>& parts, const std::vector<double>& found, double scale) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::vector<double>& part) {
    for (size_t i = 0; i < part.size(); i++)
      if (!(std::abs(part[i] - found[i]) <= 1e-10 * scale)) return false;
    return true;
  });
}

// Returns whether the sum over the ranks of some axis is such a part.
bool is_part_of_sum(const Mesh& mesh, const ForwardValues& forward, const std::string& name, const Seen& mine, int rank,
                    const std::vector<std::vector<double>>& parts, double scale) {
  for (const Axis& axis : mesh.axes()) {
    std::vector<double> sum(mine.values.size(), 0);
    bool all = axis.size > 1;
    for (const int member : mesh.group(axis.name, rank)) {
      const auto other = forward.ranks[member].find(name);
      all = all && other != forward.ranks[member].end() && other->second.values.size() == sum.size();
      for (size_t i = 0; i < sum.size() && all; i++) sum[i] += other->second.values[i];
    }
    if (all && any_near(parts, sum, scale)) return true;
  }
  return false;
}

}  // namespace

std::optional<FirstActivation> first_activation(const Twins& twins, const VirtualOptions& options, BodyId body) {
  const BodyId last_of_one = twins.one_job.classes.front().bodies.last();
  const ForwardValues one = watch(twins.one_job, {}, body == kStepBody ? kStepBody : last_of_one);
  const ForwardValues small = watch(twins.small_job, options, body);
  const Matcher matcher(twins);
  const int64_t samples = twins.one.data.global_batch / twins.one.microbatches;
  for (const std::string& name : one.order) {
    const Seen& whole = one.ranks[0].at(name);
    // Activations that are not indexed by sample (for example experts' slots) have another layout on several ranks.
    if (whole.shape.size() < 2 || whole.shape.front() != samples) continue;
    const double scale = largest_of(whole.values);
    for (int rank = 0; rank < std::ssize(small.ranks); rank++) {
      const auto found = small.ranks[rank].find(name);
      if (found == small.ranks[rank].end()) continue;
      const Seen& mine = found->second;
      const std::vector<std::vector<double>> parts = matcher.parts(whole, mine.shape, rank);
      if (parts.empty() || any_near(parts, mine.values, scale) ||
          is_part_of_sum(twins.small.mesh, small, name, mine, rank, parts, scale))
        continue;
      return FirstActivation{name, rank, mine.op, looks_like(mine.values, parts.front(), scale, {}, {})};
    }
  }
  return std::nullopt;
}

}  // namespace prun
