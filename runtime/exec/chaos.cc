// A full disk is simulated by RLIMIT_FSIZE: from then on each write of this process to a file fails, with EFBIG.
#include "exec/chaos.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/text.h"
#include "prun/chaos.h"

namespace prun {
namespace {

using Kind = ChaosFault::Kind;

constexpr struct {
  const char* name;
  Kind kind;
} kKinds[] = {{"kill", Kind::kill}, {"stop", Kind::stop},     {"delay", Kind::delay}, {"reset", Kind::reset},
              {"flip", Kind::flip}, {"enospc", Kind::enospc}, {"nan", Kind::nan},     {"omit", Kind::omit}};

const char* kind_name(Kind kind) { return kKinds[static_cast<size_t>(kind)].name; }

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw usage_error(fmt::format("--chaos: '{}' {}; as in kill:rank=3@step=7", what, why));
}

Kind kind_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& each : kKinds) {
    if (name == each.name) return each.kind;
    names.emplace_back(each.name);
  }
  refuse(name, "is not a fault" + did_you_mean(name, names));
}

int64_t whole(const std::string& text, int64_t least) {
  int64_t value = least - 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least)
    refuse(text, fmt::format("is not a whole number of at least {}", least));
  return value;
}

// Splits "name=value" into {name, value}.
std::pair<std::string, std::string> setting_of(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) refuse(text, "lacks a value");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void set(ChaosFault& fault, const std::string& text) {
  const auto [name, value] = setting_of(text);
  const bool any = value == "any";
  if (name == "rank")
    fault.rank = any ? -1 : static_cast<int>(whole(value, 0));
  else if (name == "peer")
    fault.peer = any ? -1 : static_cast<int>(whole(value, 0));
  else if (name == "step")
    fault.step = whole(value, 1);
  else if (name == "seconds")
    fault.seconds = static_cast<double>(whole(value, 0));
  else if (name == "within")
    fault.within_ms = whole(value, 0);
  else
    refuse(name, "is nothing that a fault has" + did_you_mean(name, {"rank", "peer", "step", "seconds", "within"}));
}

ChaosFault parse_fault(std::string item) {
  ChaosFault fault{};
  const size_t colon = std::min(item.find(':'), item.find('@'));
  fault.kind = kind_of(item.substr(0, colon));
  fault.rank = -1;
  if (colon == std::string::npos) return fault;
  std::string rest = item.substr(colon + 1);
  std::replace(rest.begin(), rest.end(), '@', ',');
  for (const std::string& each : split(rest, ',')) set(fault, each);
  return fault;
}

}  // namespace

std::vector<ChaosFault> parse_chaos(const std::string& spec, int ranks) {
  std::vector<ChaosFault> faults;
  uint64_t seed = 0;
  for (const std::string& item : split(spec, ';')) {
    if (item.starts_with("seed="))
      seed = static_cast<uint64_t>(whole(item.substr(5), 0));
    else
      faults.push_back(parse_fault(item));
  }
  std::mt19937_64 random(seed);
  for (ChaosFault& fault : faults) {
    fault.seed = random();
    const auto by_seed = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    const auto other = static_cast<int>(random() % static_cast<uint64_t>(std::max(1, ranks - 1)));
    if (fault.rank < 0) fault.rank = by_seed;
    if (fault.peer < 0) fault.peer = other + (other >= fault.rank ? 1 : 0);
    if (fault.rank >= ranks) refuse(std::to_string(fault.rank), fmt::format("is not a rank; there are {}", ranks));
    const bool link = fault.kind == Kind::reset || fault.kind == Kind::flip;
    if (link && (fault.peer >= ranks || fault.peer == fault.rank))
      refuse(std::to_string(fault.peer), fmt::format("is no peer of rank {} of {}", fault.rank, ranks));
  }
  return faults;
}

void require_effect(const std::vector<ChaosFault>& faults, int64_t first, int64_t last, bool checkpoints) {
  if (first >= last) return;  // nothing is left to train
  for (const ChaosFault& fault : faults) {
    const char* name = kind_name(fault.kind);
    if (fault.step <= first || fault.step > last)
      throw usage_error(
          fmt::format("--chaos {}: step {} is not run; the steps are {} to {}", name, fault.step, first + 1, last));
    if (fault.kind == Kind::enospc && !checkpoints)
      throw usage_error("--chaos enospc needs --checkpoint DIR: ranks write no other files");
  }
}

Chaos::Chaos(const std::string& spec, int rank, int ranks, World& world) : world_(world) {
  for (const ChaosFault& fault : parse_chaos(spec, ranks))
    if (fault.rank == rank) faults_.push_back(fault);
  for (const ChaosFault& fault : faults_) {
    if (fault.kind == Kind::nan) poison_ = std::make_shared<std::atomic<bool>>(false);
    if (fault.kind == Kind::omit) omission_ = std::make_shared<std::atomic<bool>>(false);
    if ((fault.kind == Kind::reset || fault.kind == Kind::flip) && !world_.can_disturb(fault.peer))
      throw usage_error(
          fmt::format("--chaos {}: {} between rank {} and rank {} injects no faults; --transport socket does",
                      kind_name(fault.kind), world_.transport_name(), rank, fault.peer));
  }
}

Chaos::~Chaos() {
  for (std::thread& thread : later_) thread.join();
}

void Chaos::begin_step(int64_t step) {
  for (const ChaosFault& fault : faults_) {
    if (fault.step != step + 1) continue;
    if (fault.within_ms == 0) {
      bring_about(fault);
      continue;
    }
    const std::chrono::microseconds later(fault.seed % static_cast<uint64_t>(fault.within_ms * 1000));
    later_.emplace_back([this, fault, later] {
      std::this_thread::sleep_for(later);
      bring_about(fault);
    });
  }
}

void Chaos::bring_about(const ChaosFault& fault) {
  spdlog::debug("chaos: {}", kind_name(fault.kind));
  switch (fault.kind) {
    case Kind::kill:
      kill(getpid(), SIGKILL);
      return;
    case Kind::stop:
      kill(getpid(), SIGSTOP);
      return;
    case Kind::delay:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      return;
    case Kind::enospc: {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit none{0, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &none);
      return;
    }
    case Kind::nan:
      poison_->store(true);
      return;
    case Kind::omit:
      omission_->store(true);
      return;
    case Kind::reset:
    case Kind::flip:
      if (!world_.disturb(fault.kind == Kind::reset ? PRUN_FAULT_RESET : PRUN_FAULT_FLIP, fault.peer, fault.seed))
        spdlog::warn("--chaos {}: there is no connection to rank {}", kind_name(fault.kind), fault.peer);
  }
}

}  // namespace prun
