#include "prove/trained_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/element.h"
#include "ir/ops.h"
#include "kernels/reference/parameter_elements.h"

namespace prun {
namespace {

// Returns the first tensor of that name. It is the unit's own, because place.cc creates it before any other tensor of
// the name.
TensorId find_tensor(const Program& program, const std::string& name) {
  for (TensorId id : program.tensors.ids())
    if (program.tensors[id].name == name) return id;
  return {};
}

TensorId tensor_of(const Program& program, const std::string& unit, const StateKind& kind) {
  const TensorId shard = find_tensor(program, unit + "." + kind.suffix_shard);
  return !shard.none() ? shard : find_tensor(program, unit + "." + kind.suffix_whole);
}

// Returns the bytes of a persistent tensor after a run.
const std::byte* bytes_of(const Program& program, const std::vector<VirtualBuffer>& buffers, TensorId id) {
  const Tensor& tensor = program.tensors[id];
  int64_t at = 0;
  for (BufferId buffer : program.buffers.ids()) {
    if (buffer == tensor.buffer) break;
    if (program.buffers[buffer].persistent) at++;
  }
  PRUN_CHECK(program.buffers[tensor.buffer].persistent && at < std::ssize(buffers), tensor.name);
  return buffers[at].bytes.data() + tensor.byte_offset;
}

// Returns whether an optimizer keeps the tensor for a unit under this name: "adamw.m", "ema".
bool is_slot(const Program& program, TensorId tensor, const std::string& name) {
  const std::string prefix = kOptimizerState + name + ".";
  return std::ranges::any_of(program.state, [&](const StateTensor& state) {
    return state.tensor == tensor && state.name.starts_with(prefix);
  });
}

template <class F>
void each_init(const Program& program, const F& f) {
  for (const Stream& stream : program.init().streams)
    for (const Op& op : stream.ops)
      if (op.is(ops::init_params)) f(op);
}

// Returns the keys of the program's parameters by name.
std::map<std::string, int64_t> keys_of(const Program& program) {
  std::map<std::string, int64_t> keys;
  each_init(program, [&](const Op& init) {
    const std::vector<int64_t> starts = init.attrs.integers("starts"), of = init.attrs.integers("keys");
    for (const StateTensor& state : program.state)
      for (size_t i = 0; i < starts.size(); i++)
        if (state.tensor == init.writes[0] && state.begin == starts[i]) keys[state.name] = of[i];
  });
  return keys;
}

// Calls f(state, name of the kind, key of the parameter) for optimizer state.
template <class F>
void each_moment(const Program& program, const F& f) {
  const std::string_view prefix = kOptimizerState;
  for (const auto& [parameter, key] : keys_of(program))
    for (const StateTensor& state : program.state) {
      const std::string_view name = state.name;
      if (name.starts_with(prefix) && name.ends_with("." + parameter))
        f(state, name.substr(prefix.size(), name.size() - prefix.size() - parameter.size() - 1), key);
    }
}

// Calls f(index in the whole tensor, element of the rank's tensor) for the elements of a box.
template <class F>
void each_element(const Box& box, const Shape& whole, const F& f) {
  for (int64_t i = 0; i < box.elements(); i++) {
    int64_t rest = i, stride = 1, index = 0, here = box.first;
    for (size_t d = whole.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      here += rest % box.shape[d] * box.strides[d];
      rest /= box.shape[d], stride *= whole[d];
    }
    f(index, here);
  }
}

std::vector<HeldState> held_moments(const Job& job, const VirtualRun& run, const StateKind& kind) {
  std::vector<HeldState> all;
  for (int rank = 0; rank < std::ssize(job.class_of_rank); rank++) {
    const Program& program = job.program(rank);
    each_moment(program, [&](const StateTensor& state, std::string_view name, int64_t key) {
      if (name != kind.name) return;
      HeldState held{rank, state.name, state.tensor, {}};
      const std::byte* bytes = bytes_of(program, run.persistent[rank], state.tensor);
      for (const Box& box : held_boxes(program, state, rank))
        each_element(box, state.shape, [&](int64_t whole, int64_t here) {
          held.elements.push_back({key, whole, load_element(program.tensors[state.tensor].dtype, bytes, here)});
        });
      all.push_back(std::move(held));
    });
  }
  return all;
}

}  // namespace

std::vector<StateKind> state_kinds(const Job& job) {
  std::vector<StateKind> kinds = {{std::string(kGradients), "grads", "grad_shard"}};
  for (const Program& program : job.classes)
    each_init(program, [&](const Op& init) {
      for (const TensorId id : program.tensors.ids()) {
        const Tensor& tensor = program.tensors[id];
        const std::string_view name = tensor.name;
        if (program.buffers[tensor.buffer].role != Role::optimizer || !program.buffers[tensor.buffer].persistent ||
            !name.starts_with(init.unit + "."))
          continue;
        const std::string slot(name.substr(init.unit.size() + 1));
        if (is_slot(program, id, slot) &&
            std::ranges::none_of(kinds, [&](const StateKind& k) { return k.name == slot; }))
          kinds.push_back({slot, slot, slot});
      }
    });
  for (const Program& program : job.classes)
    each_moment(program, [&](const StateTensor&, std::string_view name, int64_t) {
      if (std::ranges::none_of(kinds, [&](const StateKind& k) { return k.name == name; }))
        kinds.push_back({std::string(name), "", ""});
    });
  kinds.push_back({std::string(kParameters), "params", "shard"});
  return kinds;
}

std::vector<UnitPlace> unit_places(const Program& program, const StateKind& kind) {
  std::vector<UnitPlace> places;
  each_init(program, [&](const Op& init) {
    const TensorId tensor = tensor_of(program, init.unit, kind);
    if (tensor.none()) return;
    const int64_t count = program.tensors[init.writes[0]].count(), wanted = program.tensors[tensor].count();
    PRUN_CHECK(wanted == count, fmt::format("{} has {} elements of {}", program.tensors[tensor].name, wanted, count));
    places.push_back({init.unit, tensor, &init});
  });
  return places;
}

std::vector<HeldState> held_state(const Job& job, const VirtualRun& run, const StateKind& kind) {
  if (kind.suffix_whole.empty()) return held_moments(job, run, kind);
  std::vector<HeldState> all;
  for (int rank = 0; rank < std::ssize(job.class_of_rank); rank++) {
    const Program& program = job.program(rank);
    RankMemory memory;
    memory.rank = rank;
    memory.program = &program;
    for (const UnitPlace& place : unit_places(program, kind)) {
      HeldState held{rank, place.unit, place.tensor, {}};
      const Tensor& tensor = program.tensors[place.tensor];
      const std::byte* bytes = bytes_of(program, run.persistent[rank], place.tensor);
      for (const ParameterElement& at : parameter_elements(place.init->attrs, tensor.count(), memory))
        held.elements.push_back({at.key, at.whole, load_element(tensor.dtype, bytes, at.here)});
      all.push_back(std::move(held));
    }
  }
  return all;
}

std::map<int64_t, std::vector<double>> whole_state(const Job& job, const VirtualRun& run, const StateKind& kind) {
  std::map<int64_t, std::vector<double>> whole;
  for (const HeldState& held : held_state(job, run, kind))
    for (const HeldState::Element& element : held.elements) {
      std::vector<double>& values = whole[element.key];
      if (std::ssize(values) <= element.whole) values.resize(element.whole + 1);
      values[element.whole] = element.value;
    }
  return whole;
}

}  // namespace prun
