// prun_mutate: the mutation test of the verifier. It injects small faults into the programs of correct plans, and lists
// the mutants that verify accepts although virtual ranks compute different values with them.
//
//     prun_mutate --count 200 plans/zero3.lua@4,layers=2 plans/ddp.lua@3,layers=1
//
// A case is PLAN@RANKS[,name=value...]; mutants cycle through the cases and kinds. Exit status 1: a mutant escaped.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "compile/compile.h"
#include "ir/plan_reader.h"
#include "judge.h"
#include "kernels/devices.h"
#include "script/script.h"
#include "verify/verify.h"

namespace prun::mutate {
namespace {

struct Case {
  std::string text;  // as typed
  Job job;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Case read_case(const std::string& text, const std::string& lua, const std::vector<std::string>& shared, bool fused,
               const Device& device) {
  std::vector<std::string> parts = split(text, ',');
  const size_t at = parts[0].rfind('@');
  if (at == std::string::npos) throw usage_error("a case is PLAN@RANKS[,name=value...], not '" + text + "'");
  ScriptOptions script;
  script.plan_path = parts[0].substr(0, at);
  script.lua_dir = lua;
  script.world = std::stoi(parts[0].substr(at + 1));
  parts.erase(parts.begin());
  parts.insert(parts.begin(), shared.begin(), shared.end());
  for (const std::string& setting : parts) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw usage_error("a setting is NAME=VALUE, not '" + setting + "'");
    script.settings[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  CompileOptions options;
  options.device = std::string(device.name());
  options.workspace_bytes = [&](const Program& program, const Op& op) { return device.workspace_bytes(program, op); };
  options.fuses = [&, fused](std::string_view kind) { return fused || device.fuses(kind); };
  Case made{text, compile(read_plan(run_script(script).plan_cbor), options)};
  for (Program& program : made.job.classes) program.schedule.steps = 3;
  require_valid(made.job, 0);
  return made;
}

struct Tally {
  int refused = 0, equivalent = 0, without_effect = 0, escaped = 0;
  void add(Outcome outcome) {
    int* const all[] = {&refused, &equivalent, &without_effect, &escaped};
    ++*all[static_cast<size_t>(outcome)];
  }
};

void print_row(const std::string& name, const Tally& tally) {
  fmt::print("{:<48} {:>8} {:>10} {:>14} {:>8}\n", name, tally.refused, tally.equivalent, tally.without_effect,
             tally.escaped);
}

int run(int argc, char** argv) {
  CLI::App app("Mutation test of the verifier");
  int count = 200;
  uint64_t seed = 1;
  bool list = false, fused = false;
  std::string device_name = "reference", lua = "lua", only;
  std::vector<std::string> texts, shared;
  app.add_option("cases", texts, "PLAN@RANKS[,name=value...]")->required();
  app.add_option("--count", count, "mutants in all");
  app.add_option("--seed", seed, "of the choice of mutants");
  app.add_option("--device", device_name, "what computes");
  app.add_option("--lua", lua, "folder of the Lua modules");
  app.add_option("--set", shared, "NAME=VALUE for every case")->take_all();
  app.add_option("--kind", only, "mutants of this kind only");
  app.add_flag("--fused", fused, "ops that are several in one wherever they can be made");
  app.add_flag("--list", list, "print every mutant");
  CLI11_PARSE(app, argc, argv);

  const std::unique_ptr<Device> device = open_device(device_name);
  std::vector<Case> cases;
  for (const std::string& text : texts) cases.push_back(read_case(text, lua, shared, fused, *device));
  std::vector<Judge> judges;
  judges.reserve(cases.size());
  for (const Case& one : cases) judges.emplace_back(one.job, *device);

  std::mt19937_64 random(seed);
  std::map<std::string, Tally> by_case, by_kind, by_rule;
  Tally all;
  int made = 0;
  for (int turn = 0; made < count && turn < 50 * count; turn++) {
    const size_t which = static_cast<size_t>(turn) % cases.size();
    const Kind kind = static_cast<Kind>(static_cast<size_t>(turn) / cases.size() % kKinds);
    if (!only.empty() && kind_name(kind) != only) continue;
    Mutant mutant;
    if (!mutate(cases[which].job, kind, random, mutant)) continue;
    made++;
    const Verdict verdict = judges[which].judge(mutant);
    for (Tally* tally : {&all, &by_case[texts[which]], &by_kind[std::string(kind_name(kind))]})
      tally->add(verdict.outcome);
    if (verdict.outcome == Outcome::refused) by_rule[verdict.why].refused++;
    static constexpr const char* kWords[] = {"refused by", "equivalent", "without effect", "ESCAPED: differs in"};
    if (list || verdict.outcome == Outcome::escaped)
      fmt::print("{}: {}: {} {}\n", texts[which], mutant.what, kWords[static_cast<size_t>(verdict.outcome)],
                 verdict.why);
    std::fflush(stdout);
  }
  fmt::print("{:<48} {:>8} {:>10} {:>14} {:>8}\n", "", "refused", "equivalent", "without effect", "escaped");
  for (const auto& [name, tally] : by_case) print_row(name, tally);
  for (const auto& [name, tally] : by_kind) print_row("  " + name, tally);
  for (const auto& [name, tally] : by_rule) print_row("    " + name, tally);
  print_row(fmt::format("{} mutants, seed {}", made, seed), all);
  return all.escaped > 0 ? 1 : 0;
}

}  // namespace
}  // namespace prun::mutate

int main(int argc, char** argv) {
  try {
    return prun::mutate::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "prun_mutate: " << error.what() << "\n";
    return 2;
  }
}
