#include "job/forward.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/base.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "exec/prediction_file.h"
#include "ir/ops.h"
#include "job/build.h"
#include "job/device_check.h"
#include "job/kernels.h"
#include "job/rank.h"
#include "job/settle.h"
#include "job/weights.h"
#include "watch/observer.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const char* name_of(const JobSpec& spec) { return spec.purpose == Purpose::predict ? "predict" : "eval"; }

// Returns the weights as ranks read them: adapters are tensors of their own only in a plan that has some.
checkpoint::Weights weights_of(const std::string& folder, const Adapters& adapters, checkpoint::Take take) {
  return adapters.any() && checkpoint::holds_adapters(folder) ? checkpoint::open_with_base(folder, take, adapters.base)
                                                              : checkpoint::open_weights(folder, "", true, take);
}

Job forward_job(JobSpec& spec) {
  settle_kernels(spec);
  spec.checkpoint.resumes = true;
  Plan plan;
  Job job = build_job(spec, spec.launch.nproc, &plan);
  job.numerics = settled_numerics(spec);
  if (spec.purpose == Purpose::evaluate && plan.evaluation->ema) spec.checkpoint.ema = true;
  const checkpoint::Take take = checkpoint::parameters_or_averages(spec.checkpoint.ema);
  const checkpoint::Weights weights = checkpoint::open_weights(spec.forward.from, "", true, take);
  spec.checkpoint.resume = weights.checkpoint ? weights.folder : spec.forward.from;
  if (weights.checkpoint)
    checkpoint::Reader(weights.folder)
        .verify(spec.checkpoint.ema ? checkpoint::Part::state : checkpoint::Part::parameters);
  require_fit(weights_of(spec.checkpoint.resume, plan.adapters, take), job);
  return job;
}

// Returns the rows that ranks write; nullopt: the job predicts nothing.
std::optional<PredictedRows> rows_of(const Job& job) {
  for (const Program& program : job.classes)
    for (const Body& body : program.bodies)
      for (const Stream& stream : body.streams)
        for (const Op& op : stream.ops)
          if (op.is(ops::write_rows)) return predicted_rows(program, op);
  return std::nullopt;
}

const Body& forward_body(const Job& job) { return job.classes.front().bodies[kStepBody + 1]; }

// The staged file of a prediction, removed unless it is committed.
class StagedFile {
 public:
  StagedFile(const ForwardSettings& settings, const PredictedRows& rows, int64_t samples)
      : path_(settings.staged()), target_(settings.out) {
    const std::string header = npy_header(rows, samples);
    std::ofstream(path_, std::ios::binary) << header;
    std::error_code error;
    fs::resize_file(path_, header.size() + samples * rows.bytes(), error);
    if (error) throw usage_error(fmt::format("--out {}: {}", target_, error.message()));
  }
  ~StagedFile() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void commit() {
    if (std::rename(path_.c_str(), target_.c_str()) != 0)
      throw usage_error(fmt::format("--out {}: {}", target_, strerror(errno)));
    path_.clear();
  }

 private:
  std::string path_, target_;
};

int64_t samples_of(const Body& body) {
  return body.data.whole > 0 ? body.data.whole : body.when.times * body.data.global_batch;
}

void print_loss(const JobSpec& spec, const Job& job, const MergedStep& step) {
  const int64_t samples = samples_of(forward_body(job));
  const std::vector<std::string> named = evaluation_names(job.classes.front());
  if (!spec.watch.json) {
    fmt::print("{:<10} {:.6g}\n", "loss", step.eval_loss);
    for (size_t i = 0; i < named.size(); ++i) fmt::print("{:<10} {:.6g}\n", named[i], step.eval_named[i]);
    return fmt::print("samples    {}\ntime       {}\n", samples, human_seconds(step.eval_s));
  }
  const Json loss = std::isfinite(step.eval_loss) ? Json(step.eval_loss) : Json();
  Json all = {{"plan", spec.plan}, {"from", spec.checkpoint.resume}, {"ranks", spec.ranks()}, {"samples", samples},
              {"eval_loss", loss}, {"seconds", step.eval_s}};
  for (size_t i = 0; i < named.size(); ++i)
    all["eval_" + named[i]] = std::isfinite(step.eval_named[i]) ? Json(step.eval_named[i]) : Json();
  fmt::print("{}\n", all.dump());
}

void print_file(const JobSpec& spec, const PredictedRows& rows, int64_t samples) {
  Shape shape = rows.shape;
  shape.insert(shape.begin(), samples);
  if (!spec.watch.json) return fmt::print("{}  {}{}\n", spec.forward.out, dtype_name(rows.dtype), shape_text(shape));
  const Json all = {{"plan", spec.plan},       {"from", spec.checkpoint.resume},  {"ranks", spec.ranks()},
                    {"out", spec.forward.out}, {"dtype", dtype_name(rows.dtype)}, {"shape", shape}};
  fmt::print("{}\n", all.dump());
}

}  // namespace

void check_forward_options(const JobSpec& spec) {
  const ForwardSettings& settings = spec.forward;
  if (settings.from.empty())
    throw usage_error(
        fmt::format("prun {} needs --from DIR: a checkpoint, a folder of them (its newest; its best: "
                    "DIR/best), or a Hugging Face folder",
                    name_of(spec)));
  if (spec.purpose != Purpose::predict) return;
  if (settings.out.empty()) throw usage_error("prun predict needs --out FILE.npy, where the array goes");
  if (fs::is_directory(settings.out)) throw usage_error(fmt::format("--out {} is a folder", settings.out));
}

int run_forward(JobSpec& spec, const DeviceReport& devices) {
  settle_alone(spec, name_of(spec));
  Observer observer(spec.watch, 0);
  Launch launch(spec.launch, observer);
  const Job job = forward_job(spec);
  check_device_memory(spec, job, devices);
  const std::optional<PredictedRows> rows = rows_of(job);
  const int64_t samples = samples_of(forward_body(job));
  std::optional<StagedFile> file;
  if (rows) file.emplace(spec.forward, *rows, samples);
  observer.evaluated = [&](const MergedStep& step) { print_loss(spec, job, step); };
  observer.show(job);
  const int code = launch.run(serialize_job(job), [&](const RankStart& start) {
    RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = Observer::recorder_capacity(spec.watch);
    recorder->magic = kRecorderMagic;
    return run_rank(start, spec, devices);
  });
  if (code == 0 && file) {
    file->commit();
    print_file(spec, *rows, samples);
  }
  std::fflush(stdout);
  return observer.finish(code);
}

}  // namespace prun
