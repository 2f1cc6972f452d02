// Tests a padded vocabulary: padding remains zero under every optimizer, FLOPs are those of the model, and the verifier
// rejects a program in which an op counts the padding. `parity_product --pad-vocabulary` compares losses, gradients and
// norms with those of the true vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "device/element.h"
#include "ir/op_cost.h"
#include "ir/ops.h"
#include "ir/state.h"
#include "kernels/devices.h"
#include "tests/parity/parity_job.h"
#include "verify/verify.h"

namespace prun::test {
namespace {

constexpr int64_t kMultiple = 16;  // 257 columns become 272

Job job_of(int ranks, Settings settings, int64_t multiple, const std::string& device = "reference") {
  const Settings small = {{"width", "12"}, {"heads", "4"}, {"batch", "4"}, {"layers", "1"}};
  settings.insert(small.begin(), small.end());
  return parity_job(ranks, settings, device, "tests/parity/product.lua", false, 0, multiple);
}

struct VocabularyCase {
  const char* name;
  int ranks;
  Settings settings;
};
void PrintTo(const VocabularyCase& c, std::ostream* out) { *out << c.name; }

class PaddedVocabulary : public testing::TestWithParam<VocabularyCase> {};

TEST_P(PaddedVocabulary, HasTheModelsFlops) {
  const VocabularyCase& c = GetParam();
  const double padded = model_flops(job_of(c.ranks, c.settings, kMultiple));
  const Settings alone = {{"tied", c.settings.at("tied")}, {"layers", c.settings.count("pp") != 0 ? "2" : "1"}};
  const double plain = model_flops(job_of(1, alone, 1));
  EXPECT_NEAR(padded / plain, 1, 1e-12);
}

// Padding: the elements of parameters and optimizer state that belong to no logical tensor.
TEST_P(PaddedVocabulary, PaddingStaysZero) {
  const VocabularyCase& c = GetParam();
  for (const char* optimizer : {"sgd", "adamw", "lion"}) {
    Settings settings = c.settings;
    settings["optimizer"] = optimizer, settings["clip"] = "0.5", settings["lr"] = "0.01";
    const Job job = job_of(c.ranks, settings, kMultiple);
    const VirtualRun run = run_virtual_ranks(job, *open_device("reference"));
    int64_t padding = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Program& program = job.program(rank);
      std::map<std::pair<BufferId, int64_t>, bool> counted;  // key: buffer and first byte of an element
      for (const StateTensor& state : program.state) {
        const Tensor& tensor = program.tensors[state.tensor];
        for (int64_t i = 0; i < tensor.count(); ++i)
          counted.try_emplace({tensor.buffer, tensor.byte_offset + i * dtype_bytes(tensor.dtype)}, false);
        for (const Box& box : held_boxes(program, state, rank))
          for (int64_t i = 0; i < box.elements(); ++i) {
            int64_t at = box.first, rest = i;
            for (size_t d = box.shape.size(); d-- > 0; rest /= box.shape[d]) at += rest % box.shape[d] * box.strides[d];
            counted.at({tensor.buffer, tensor.byte_offset + at * dtype_bytes(tensor.dtype)}) = true;
          }
      }
      for (const auto& [at, is_counted] : counted) {
        if (is_counted) continue;
        ++padding;
        const auto& bytes = run.persistent[rank];
        const auto buffer = std::find_if(bytes.begin(), bytes.end(),
                                         [&](const auto& one) { return one.name == program.buffers[at.first].name; });
        ASSERT_NE(buffer, bytes.end());
        EXPECT_EQ(load_element(Dtype::f64, buffer->bytes.data() + at.second, 0), 0)
            << optimizer << ", rank " << rank << ", " << buffer->name << " at byte " << at.second;
      }
    }
    EXPECT_GE(padding, 15 * 12) << optimizer;
  }
}

std::string refusal(const Job& job) {
  try {
    require_valid(job, 0);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST_P(PaddedVocabulary, OpsThatCountThePaddingAreRejected) {
  const VocabularyCase& c = GetParam();
  const Job right = job_of(c.ranks, c.settings, kMultiple);
  int changed = 0;
  for (size_t id = 0; id < right.classes.size(); ++id)
    for (const BodyId body : right.classes[id].bodies.ids())
      for (const StreamId stream : right.classes[id].bodies[body].streams.ids())
        for (size_t i = 0; i < right.classes[id].bodies[body].streams[stream].ops.size(); ++i) {
          const Op& op = right.classes[id].bodies[body].streams[stream].ops[i];
          for (const char* attr : {"vocab", "valid"}) {
            if (!op.attrs.has(attr) || (op.is(ops::embedding_grad) && std::string(attr) == "vocab")) continue;
            if (op.is(ops::embedding_grad) || op.is(ops::cross_entropy_finish))
              continue;  // their attributes affect no value
            ++changed;
            Job wrong = right;
            Op& other = wrong.classes[id].bodies[body].streams[stream].ops[i];
            other.attrs.set(attr, op.attrs.integer(attr) + 1);
            EXPECT_NE(refusal(wrong), "") << op.def->name << " with another " << attr;
          }
        }
  EXPECT_GE(changed, 2);
}

INSTANTIATE_TEST_SUITE_P(
    , PaddedVocabulary,
    testing::Values(VocabularyCase{"one_rank", 1, {{"tied", "false"}}}, VocabularyCase{"tied", 1, {{"tied", "true"}}},
                    VocabularyCase{"zero3", 2, {{"tied", "true"}, {"dp", "2"}, {"data_parallel", "zero3"}}},
                    VocabularyCase{"zero1", 2, {{"tied", "false"}, {"dp", "2"}, {"data_parallel", "zero1"}}},
                    VocabularyCase{"tensor_parallel", 2, {{"tied", "true"}, {"tp", "2"}}},
                    VocabularyCase{"pipeline", 2, {{"tied", "true"}, {"pp", "2"}, {"layers", "2"}}}),
    [](const auto& made) { return made.param.name; });

// A strategy that splits the weight along its inputs, and losses that read logits in other ways, pad nothing.
TEST(PaddedVocabularies, OtherModelsStayAsTheyAre) {
  const auto state = [](const Job& job) {
    int64_t bytes = 0;
    for (const Buffer& buffer : job.classes[0].buffers) bytes += buffer.persistent ? buffer.bytes : 0;
    return bytes;
  };
  const Settings mlp = {{"model", "mlp"}};
  EXPECT_EQ(state(job_of(1, mlp, 7)), state(job_of(1, mlp, 1)));
  EXPECT_GT(state(job_of(1, {}, kMultiple)), state(job_of(1, {}, 1)));
}

}  // namespace
}  // namespace prun::test
