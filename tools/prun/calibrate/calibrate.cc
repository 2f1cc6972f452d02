// prun calibrate: measures this machine and writes the cluster file that describes it.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cores.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "calibrate/links.h"
#include "calibrate/probe.h"
#include "job_options.h"
#include "launch/preflight.h"
#include "simulate/calibration.h"
#include "simulate/cluster.h"
#include "simulate/fit.h"
#include "watch/output_file.h"
#include "watch/run_environment.h"

namespace prun {
namespace {

using simulate::Cluster;

// Division of a probe's work among ranks: samples, weights (and tokens between the layers), or stages.
enum class Split : uint8_t { samples, weights, tokens, stages };

// Arguments of plans/gpt.lua. Sizes of GEMMs and of memory-bound ops vary by more than 100 times.
struct ProbePlan {
  const char *arch, *width, *heads, *layers, *context;
  int samples;  // samples per rank
  Split split = Split::samples;
};
const ProbePlan kProbes[] = {
    {"gpt", "32", "2", "1", "32", 1},
    {"gpt", "128", "2", "2", "128", 4},
    {"gpt", "256", "4", "1", "128", 16},
    {"gpt", "512", "8", "1", "128", 8},
    {"gpt", "128", "4", "1", "512", 8},
    {"gpt", "256", "4", "1", "128", 8, Split::tokens},
    {"llama", "256", "4", "1", "256", 4},
    {"gpt", "256", "4", "1", "128", 32},
    {"gpt", "256", "4", "1", "128", 64, Split::tokens},
    {"gpt", "256", "4", "1", "128", 16, Split::weights},
    {"gpt", "256", "4", "2", "128", 8, Split::stages},
    {"llama", "128", "2", "1", "128", 2},
};
constexpr const char* kPrecisions[] = {"f32", "bf16"};
constexpr int kLeastSeconds = 20;  // about what the fewest steps of all probes and the shortest rows of all links take

std::map<std::string, std::string> settings_of(const ProbePlan& plan, const char* precision, int ranks, int steps) {
  const bool splits_weights = plan.split == Split::weights || plan.split == Split::tokens;
  const int tp = splits_weights ? std::gcd(ranks, std::stoi(plan.heads)) : 1;
  const int pp = plan.split == Split::stages ? std::gcd(ranks, 2) : 1;
  constexpr int kMicrobatches = 3;  // number of microbatches if the split is by stages
  const int microbatches = pp > 1 ? kMicrobatches : 1;
  return {{"arch", plan.arch},
          {"width", plan.width},
          {"heads", plan.heads},
          {"layers", plan.layers},
          {"context", plan.context},
          {"precision", precision},
          {"micro_size", std::to_string(plan.samples)},
          {"batch", std::to_string(plan.samples * microbatches * (ranks / tp / pp))},
          {"steps", std::to_string(steps)},
          {"overlap", "false"},
          {"sequence", plan.split == Split::tokens && tp > 1 ? "true" : "false"},
          {"pp", std::to_string(pp)},
          {"tp", std::to_string(tp)}};
}

std::string cpu_name() {
  const std::string name = processor_name();
  return name.empty() ? "CPU" : name;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", std::localtime(&now));
  return text;
}

class Calibration {
 public:
  Calibration(const JobSpec& job, double seconds)
      : job_(job), seconds_(seconds), transports_(calibrated_transports(job)), ranks_(job.launch.nproc) {}

  Cluster measure() {
    const auto begin = std::chrono::steady_clock::now();
    measure_ops(seconds_ * 0.5);
    auto links = static_cast<double>(transports_.size());
    for (const CalibratedTransport& transport : transports_) {
      const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const double left = std::max(seconds_ - took, seconds_ * 0.1);  // less than half where the few steps take longer
      cluster_.transports[transport.name] = measure_link(job_, transport, left / links--);
      advance();
    }
    cluster_.bus = cluster_.transports.at(transports_.front().name);
    take_transfers(transfers_, cluster_.bus);
    describe();
    return cluster_;
  }

 private:
  void advance() { bar_.advance(++done_, static_cast<int64_t>(std::size(kProbes) * 2 + transports_.size())); }

  // Runs as many steps as fit into `seconds`, and the fewest where earlier probes took longer than their share.
  // Starting a probe takes about 0.3 s.
  void measure_ops(double seconds) {
    const auto start = std::chrono::steady_clock::now();
    const double each = seconds / (2.0 * std::size(kProbes));
    double share = 0;  // of the probes so far
    std::vector<OpSample> samples;
    std::vector<double> wakes;
    for (const ProbePlan& plan : kProbes)
      for (const char* precision : kPrecisions) {
        const auto begin = std::chrono::steady_clock::now();
        constexpr double kStep = 0.08;
        const bool late = std::chrono::duration<double>(begin - start).count() > share;
        const int steps = late ? 3 : std::clamp(static_cast<int>((each - 0.3) / kStep), 5, 60);
        share += each;
        Probe probe = run_probe(job_, settings_of(plan, precision, ranks_, steps));
        samples.insert(samples.end(), probe.ops.begin(), probe.ops.end());
        transfers_.insert(transfers_.end(), probe.transfers.begin(), probe.transfers.end());
        if (probe.wake_s > 0) wakes.push_back(probe.wake_s);
        for (const OpSample& sample : probe.ops)
          log_debug("calibrate", "{} {} {:g} flops {:g} bytes {:.2f} us", sample.op, dtype_name(sample.dtype),
                    sample.flops, sample.bytes, sample.seconds * 1e6);
        for (const TransferSample& sample : probe.transfers)
          log_debug("calibrate", "{} of {:g} bytes {:.2f} us", sample.kind ? traits(*sample.kind).name : "message",
                    sample.bytes, sample.seconds * 1e6);
        log_info("calibrate", "{} width {}, {} samples of {}, {}: {} steps in {:.1f} s", plan.arch, plan.width,
                 plan.samples, plan.context, precision, steps,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        advance();
      }
    simulate::DeviceModel& device = cluster_.device;
    std::sort(wakes.begin(), wakes.end());
    if (!wakes.empty()) device.wake_s = wakes[wakes.size() / 2];
    general_figures(samples);
    device.ops = fit_ops(samples, device.launch_s);
  }

  // Derives figures for the ops that no probe contains.
  void general_figures(const std::vector<OpSample>& samples) {
    simulate::DeviceModel& device = cluster_.device;
    std::vector<double> launches, bandwidths;
    for (const OpSample& sample : samples) {
      constexpr double kSmall = 4096, kLarge = 1 << 20;
      if (!sample.product && sample.bytes <= kSmall) launches.push_back(sample.seconds);
      if (!sample.product && sample.bytes >= kLarge) bandwidths.push_back(sample.bytes / sample.seconds);
      double& peak = device.peak[static_cast<size_t>(sample.dtype)];
      if (sample.product) peak = std::max(peak, sample.flops / sample.seconds);
    }
    const auto middle = [](std::vector<double>& of) {
      std::sort(of.begin(), of.end());
      return of.empty() ? 0 : of[of.size() / 2];
    };
    device.launch_s = middle(launches);
    device.memory_bandwidth = middle(bandwidths);
    device.memory_efficiency = 1;
  }

  void describe() {
    simulate::DeviceModel& device = cluster_.device;
    const int cores = std::max(1, usable_cores() / ranks_);
    device.name = fmt::format("{} of {}", counted(cores, "core"), cpu_name());
    device.memory_bytes = static_cast<double>(total_memory()) / ranks_;
    device.shared_cores = true;
    cluster_.name = fmt::format("{}, {}", cpu_name(), counted(usable_cores(), "core"));
    cluster_.node.devices = ranks_;
  }

  const JobSpec& job_;
  const double seconds_;
  std::vector<CalibratedTransport> transports_;
  int ranks_;
  std::vector<TransferSample> transfers_;
  Cluster cluster_;
  Bar bar_{"calibrating", "parts"};
  int64_t done_ = 0;
};

// The output file. It is written under a temporary name and renamed, so that no reader gets half of it. It is opened
// before the minutes of measuring, so that an error is reported early.
class ClusterFile {
 public:
  explicit ClusterFile(const std::string& path) : path_(path), fresh_(path + ".new") {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    file_.open(fresh_);
    require();
  }
  ~ClusterFile() {
    std::error_code gone;
    std::filesystem::remove(fresh_, gone);
  }
  ClusterFile(const ClusterFile&) = delete;
  ClusterFile& operator=(const ClusterFile&) = delete;

  void write(const std::string& text) {
    file_ << text;
    file_.flush();
    require();
    simulate::read_cluster(fresh_);
    if (std::rename(fresh_.c_str(), path_.c_str()) != 0) file_.setstate(std::ios::failbit);
    require();
  }

 private:
  void require() const {
    if (!file_) throw usage_error(fmt::format("cannot write the cluster file {}: {}", path_, std::strerror(errno)));
  }

  std::string path_, fresh_;
  std::ofstream file_;
};

class Calibrate final : public Command {
 public:
  void declare(OptionTable& table) override;
  void take_operands(std::vector<std::string>& operands) override {
    refuse_operands("calibrate", operands, "it looks at this machine");
  }
  void settle() override;
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
  std::string output_;  // "": calibration_path()
  int seconds_ = 50;
};

void Calibrate::declare(OptionTable& table) {
  job_.launch.nproc = usable_cores();
  table.whole("--nproc", "N", job_.launch.nproc, 1,
              "ranks that share this machine in the runs to predict (default: as many as cores)");
  table.text("--output", "FILE", output_,
             "the cluster file to write (default: ~/.config/prun/HOST.yaml, which prun sim and runs look for)");
  table.whole("--seconds", "S", seconds_, kLeastSeconds,
              "about how long it takes where the cores are free, from 20 on (default 50); less is less exact");
}

void Calibrate::settle() { check_ranks(job_); }

int Calibrate::run() {
  const std::string path = output_.empty() ? calibration_path() : output_;
  if (path.empty()) throw usage_error("where to? Neither HOME nor XDG_CONFIG_HOME is set: --output FILE");
  refuse_other_contents(path, "cluster file", "# Measured by `prun calibrate");
  ClusterFile file(path);
  const auto begin = std::chrono::steady_clock::now();
  const Cluster cluster = Calibration(job_, seconds_).measure();
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string comment =
      fmt::format("Measured by `prun {}` on {}, {}, with all of {} busy.\n{}", join(job_.watch.words, " "), cpu_name(),
                  today(), counted(job_.launch.nproc, "rank"),
                  "prun sim PLAN --cluster FILE reads it; tools/prun/SIMULATE.md has the fields.");
  file.write(cluster_text(cluster, comment));
  if (line_.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"file", path},
                                              {"seconds", took},
                                              {"ranks", cluster.node.devices},
                                              {"memory_bandwidth", cluster.device.memory_bandwidth},
                                              {"f32_flops", cluster.device.peak[static_cast<size_t>(Dtype::f32)]},
                                              {"bf16_flops", cluster.device.peak[static_cast<size_t>(Dtype::bf16)]},
                                              {"bus", cluster.bus.name},
                                              {"bus_bandwidth", cluster.bus.bandwidth}}
                           .dump());
    return 0;
  }
  const auto peak = [&](Dtype dtype) {
    return short_number(cluster.device.peak[static_cast<size_t>(dtype)], "FLOP/s");
  };
  fmt::print("{}: measured in {}\n", path, human_seconds(took));
  fmt::print("  {:<18} f32 {}, bf16 {} a rank\n", "products", peak(Dtype::f32), peak(Dtype::bf16));
  fmt::print("  {:<18} {} a rank\n", "memory", short_number(cluster.device.memory_bandwidth, "B/s"));
  for (const auto& [name, link] : cluster.transports)
    fmt::print("  {:<18} {} a message, {}\n", name, human_seconds(link.message_s), short_number(link.bandwidth, "B/s"));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_calibrate() { return std::make_unique<Calibrate>(); }

}  // namespace prun
