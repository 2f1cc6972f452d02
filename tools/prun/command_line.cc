// CLI11 stores each option once, with its help. --help, the check of names and the hint at commands that have an option
// read it from there. The messages are prun's own.
#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/transport/plugin.h"
#include "elsewhere.h"
#include "job/build.h"

namespace prun {

void OptionTable::flag(const char* name, bool& value, const char* help) {
  app_.add_flag(name, value, help)->group(group_);
}

void OptionTable::text(const char* name, const char* unit, std::string& value, const char* help) {
  app_.add_option(name, value, help)->type_name(unit)->group(group_);
}

void OptionTable::parsed(const char* name, const char* unit, const Read& read, const char* help, bool many) {
  CLI::callback_t read_all = [read](const CLI::results_t& texts) {
    for (const std::string& text : texts) read(text);
    return true;
  };
  CLI::Option* option = app_.add_option(name, std::move(read_all), help)->type_name(unit)->expected(1)->group(group_);
  if (many) option->take_all();
}

void OptionTable::whole(const char* name, const char* unit, int& value, int least, const char* help) {
  const auto read = [&value, name = std::string(name), least](const std::string& text) {
    value = whole_number(name, text, least);
  };
  parsed(name, unit, read, help);
}

namespace {

bool is_run(const CommandRow& row) { return &row == &commands().front(); }

std::string typed_name(const CommandRow& row) { return is_run(row) ? "prun PLAN" : fmt::format("prun {}", row.name); }

const CommandRow* find_command(std::string_view name) {
  for (const CommandRow& row : commands())
    if (row.name == name && !is_run(row)) return &row;
  return nullptr;
}

// Declares the command's own options, then the common ones.
void declare_all(CLI::App& app, Command& command, ParsedCommand& parsed) {
  OptionTable table(app);
  app.set_help_flag();
  app.add_option("operands", command.line().operands);
  command.declare(table);
  table.group("general");
  if (command.json_help() != nullptr) table.flag("--json", command.line().json, command.json_help());
  table.parsed(
      "--log-level", "debug|info|warning|error",
      [&parsed](const std::string& text) { parsed.log_level = check_log_level("--log-level", text); },
      "events that are logged on standard error, one line each (default: PRUN_LOG, else warning)");
  const bool has_plan = parsed.row != nullptr && is_run(*parsed.row);
  table.flag("--help,-h", parsed.help, has_plan ? "this text; with a plan also its arguments" : "this text");
}

bool takes_value(const CLI::Option* option) { return option->get_expected_max() != 0; }

// Returns false for the values "-1" and "-".
bool looks_like_option(const std::string& word) {
  if (word.starts_with("--")) return word.size() > 2;
  return word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1])) != 0;
}

struct PlanArguments {
  std::string plan;  // "": none among the words, or it fails, because the error about the option comes first
  std::vector<std::string> names;
  bool has(const std::string& name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
};

// Returns the arguments of the plan among the words.
PlanArguments plan_arguments(const std::vector<std::string>& words) {
  PlanArguments found;
  const auto plan = std::find_if(words.begin(), words.end(), [](const auto& word) { return word.ends_with(".lua"); });
  if (plan == words.end()) return found;
  JobSpec job;
  job.plan = *plan;
  try {
    job.lua_dir = find_installation().lua_dir;
    for (const PlanArgument& argument : describe_plan(job).arguments) found.names.push_back(argument.name);
    found.plan = *plan;
  } catch (const Error&) {
  }
  return found;
}

// Returns the answer to an option that is an argument of most plans.
std::string setting_text(const SettingHere& setting, const PlanArguments& arguments) {
  if (!arguments.plan.empty() && !arguments.has(setting.name))
    return fmt::format(" ({} has no argument '{}': edit {} in it)", arguments.plan, setting.name, setting.in_plan);
  return fmt::format(" (here: --set {}={}{})", setting.name, setting.value,
                     arguments.plan.empty() ? ", where the plan has it" : "");
}

// Returns "--set steps=3" if the option has the name of an argument of the plan or, unless `exact`, a similar name;
// otherwise "".
std::string setting_of(const std::string& option, const std::string& value, const std::vector<std::string>& words,
                       bool exact) {
  std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  const PlanArguments arguments = plan_arguments(words);
  if (!arguments.has(name)) {
    name = exact ? "" : nearest_word(name, arguments.names);
    if (name.empty()) return "";
  }
  return fmt::format("--set {}={}", name, value.empty() ? "VALUE" : value);
}

Error no_such_option(const std::string& name, const std::string& value, const std::vector<std::string>& words,
                     const CLI::App& app, const CommandRow& command) {
  std::vector<std::string> own = {"--version"};  // parse_options handles it
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& each : option->get_lnames()) own.push_back("--" + each);
    for (const std::string& each : option->get_snames()) own.push_back("-" + each);
  }
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  if (std::find(own.begin(), own.end(), dashed) != own.end())
    return usage_error(fmt::format("there is no option {} (here: {})", name, dashed));
  const bool sets = app.get_option_no_throw("--set") != nullptr;
  const std::string setting = sets ? setting_of(name, value, words, true) : "";
  if (!setting.empty())
    return usage_error(fmt::format("there is no option {}, but an argument of the plan: {}", name, setting));
  if (const SettingHere* elsewhere = sets ? setting_here(name) : nullptr)
    return usage_error(fmt::format("there is no option {}{}", name, setting_text(*elsewhere, plan_arguments(words))));
  const std::string ours = option_here(name);
  std::vector<std::string> others;
  ParsedCommand scratch;
  for (const CommandRow& other : commands()) {
    CLI::App theirs;
    const std::unique_ptr<Command> unused = other.make();
    declare_all(theirs, *unused, scratch);
    if (name.starts_with("--") && theirs.get_option_no_throw(name) != nullptr) others.push_back(typed_name(other));
  }
  if (others.empty()) {
    const bool one_letter = name.size() == 2;  // each is near to all others
    std::string hint = ours.empty() && !one_letter ? if_near(name, own) : ours;
    if (const std::string near = hint.empty() && sets && !one_letter ? setting_of(name, value, words, false) : "";
        !near.empty())
      hint = fmt::format(" (did you mean '{}'?)", near);
    if (hint.empty() && sets) hint = " (`--help` lists them; an argument of the plan is set with --set NAME=VALUE)";
    return usage_error(fmt::format("there is no option {}{}", name, hint.empty() ? did_you_mean(name, own) : hint));
  }
  return usage_error(fmt::format("{} has no option {}, but {} {} (`prun {}--help` lists its own)", typed_name(command),
                                 name, join(others, ", "), others.size() == 1 ? "has" : "have",
                                 is_run(command) ? "" : fmt::format("{} ", command.name)));
}

// CLI11 would detect the same errors, but its messages name neither the typed words nor the fix.
void check_option_words(const std::vector<std::string>& words, const CLI::App& app, const CommandRow& command) {
  std::map<const CLI::Option*, std::string> given;
  for (auto word = words.begin(); word != words.end() && *word != "--"; ++word) {
    if (!looks_like_option(*word)) continue;
    const size_t equals = word->find('=');
    const std::string name = word->substr(0, equals);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr && name != "--version") {
      std::string value = equals == std::string::npos ? "" : word->substr(equals + 1);
      if (equals == std::string::npos && word + 1 != words.end() && !looks_like_option(*(word + 1)))
        value = *(word + 1);
      throw no_such_option(name, value.ends_with(".lua") ? "" : value, words, app, command);
    }
    if (option == nullptr || !takes_value(option)) {
      if (equals != std::string::npos)
        throw usage_error(fmt::format("{} takes no value: write {}, not {}", name, name, *word));
      continue;
    }
    const std::string type = option->get_type_name();
    std::string value = equals == std::string::npos ? "" : word->substr(equals + 1);
    if (equals != std::string::npos ? value.empty() : word + 1 == words.end())
      throw usage_error(fmt::format("{} needs a value: {} {}", name, name, type));
    if (equals == std::string::npos) {
      value = *++word;
      // --checkpoint "$DIR" without DIR would train without checkpoints. TEXT and K=V may be empty.
      if (value.empty() && type != "TEXT" && type.find('=') == std::string::npos)
        throw usage_error(fmt::format("{} has an empty value, as of an unset variable: {} {}", name, name, type));
      if (looks_like_option(value))
        throw usage_error(fmt::format("{} needs a value before {}: {}={}", name, value, name, type));
    }
    const auto [first, is_first] = given.emplace(option, value);
    if (!is_first && option->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll)
      throw usage_error(fmt::format("{} is given twice: {} and {}; keep one", name, first->second, value));
  }
}

std::vector<OptionText> option_texts(const CommandRow& row) {
  CLI::App app;
  ParsedCommand unused;
  unused.row = &row;
  const std::unique_ptr<Command> command = row.make();
  declare_all(app, *command, unused);
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    OptionText text{
        {}, takes_value(option) ? option->get_type_name() : "", option->get_description(), option->get_group()};
    for (const std::string& name : option->get_lnames()) text.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) text.names.push_back("-" + name);
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::vector<CommandText> command_texts() {
  std::vector<CommandText> texts;
  for (const CommandRow& row : commands()) texts.push_back({row.name, row.usage, row.help, option_texts(row)});
  return texts;
}

ParsedCommand parse_words(const std::vector<std::string>& given) {
  std::vector<std::string> words = given;
  if (!words.empty() && words[0] == "help") {  // `prun help sim` is `prun sim --help`
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  if (words.size() > 1 && words[0] == commands().front().name && words.back() == "--help") words.erase(words.begin());
  ParsedCommand parsed;
  parsed.row = words.empty() ? nullptr : find_command(words[0]);
  if (parsed.row != nullptr)
    words.erase(words.begin());
  else
    parsed.row = &commands().front();
  if (std::find(words.begin(), words.end(), "--version") != words.end()) {
    parsed.row = find_command("version");
    const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
    words = json ? std::vector<std::string>{"--json"} : std::vector<std::string>{};
  }
  parsed.command = parsed.row->make();
  if (parsed.command->takes_all()) return parsed;
  CLI::App app;
  declare_all(app, *parsed.command, parsed);
  check_option_words(words, app, *parsed.row);
  std::vector<std::string> given_options;
  std::reverse(words.begin(), words.end());
  app.parse(words);
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0)
      for (const std::string& name : option->get_lnames()) given_options.push_back("--" + name);
  CommandLine& line = parsed.command->line();
  line.words = given;
  line.given = [given_options](const char* name) {
    return std::find(given_options.begin(), given_options.end(), name) != given_options.end();
  };
  if (!parsed.help || !line.operands.empty()) parsed.command->take_operands(line.operands);
  return parsed;
}

Installation find_installation() {
  namespace fs = std::filesystem;
  Installation found;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  found.program = program.string();
  // An installed prun finds lua/ in ../share/prun. A prun in a build folder finds it at the top of the source tree.
  for (const char* candidate : {"../share/prun/lua", "../../../lua"}) {
    const fs::path lua = program.parent_path() / candidate;
    if (found.lua_dir.empty() && fs::exists(lua / "prun" / "init.lua")) found.lua_dir = fs::canonical(lua).string();
  }
  if (found.lua_dir.empty())
    throw usage_error(
        fmt::format("{} has no lua/ folder beside it: it was moved without its share/prun", found.program));
  found.plugin_dirs = plugin_directories(found.program);
  return found;
}

}  // namespace prun
