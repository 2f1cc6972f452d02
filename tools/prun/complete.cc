// prun __complete WORD ..: prints the candidates for the last word, one a line, each with a tab and its description.
// The shells' scripts (completion.cc) call this program, so that a new option needs no other change. A last line
// ":files" or ":folders" makes the shell add file names.
#include "complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "bench/ops.h"
#include "ckpt.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/plugin.h"
#include "command_line.h"
#include "compile/compile.h"
#include "job/build.h"
#include "kernels/devices.h"
#include "plan_paths.h"

namespace prun {
namespace {

struct Completion {
  std::string word, help;
};

struct CompletionAnswer {
  std::vector<Completion> candidates;
  const char* more = "";  // ":files", ":folders"
};

// The command line so far.
struct TypedLine {
  const CommandText* command = nullptr;
  std::vector<std::string> operands;  // complete words before the last one
  std::string last;                   // the word to be completed
  const OptionText* value_of = nullptr;
  std::string before;  // prefix of `last`: "--option=", if typed
  const Installation* installed = nullptr;
};

void add_words(CompletionAnswer& answer, const std::vector<std::string>& words) {
  for (const std::string& word : words) answer.candidates.push_back({word, ""});
}

// Returns the first comment line, as `prun plans` does.
std::string first_comment(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.starts_with("-- ") ? line.substr(3) : "";
}

void add_plans(CompletionAnswer& answer, const Installation& installed) {
  const std::filesystem::path root = std::filesystem::path(installed.lua_dir).parent_path();
  for (const std::string& path : plan_paths(root)) answer.candidates.push_back({path, first_comment(root / path)});
  answer.more = ":files";
}

void add_plan_arguments(CompletionAnswer& answer, const TypedLine& line) {
  if (line.operands.empty()) return;
  JobSpec job;
  job.lua_dir = line.installed->lua_dir;
  job.plan = line.operands.front();
  for (const PlanArgument& argument : describe_plan(job).arguments) {
    const std::string now = fmt::format("default {}", argument.initial);
    answer.candidates.push_back(
        {argument.name + "=", argument.help.empty() ? now : fmt::format("{} ({})", argument.help, now)});
  }
}

void add_transports(CompletionAnswer& answer, const Installation& installed) {
  answer.candidates.push_back({"auto", "chosen for each group of ranks"});
  for (const PluginFile& file : find_plugins(installed.plugin_dirs)) answer.candidates.push_back({file.name, ""});
}

void add_passes(CompletionAnswer& answer, const TypedLine&) {
  for (const std::string_view name : pass_names()) answer.candidates.push_back({std::string(name), ""});
}

void add_interfaces(CompletionAnswer& answer, const TypedLine&) {
  for (const Interface& each : list_interfaces()) answer.candidates.push_back({each.name, ""});
}

struct CompletedValue {
  const char* option;
  void (*add)(CompletionAnswer& answer, const TypedLine& line);
};
const CompletedValue kCompletedValues[] = {
    {"--set", add_plan_arguments},
    {"--transport", [](CompletionAnswer& answer, const TypedLine& line) { add_transports(answer, *line.installed); }},
    {"--vs", [](CompletionAnswer& answer, const TypedLine& line) { add_transports(answer, *line.installed); }},
    {"--device", [](CompletionAnswer& answer, const TypedLine&) { add_words(answer, device_names()); }},
    {"--after", add_passes},
    {"--interface", add_interfaces},
    {"--resume",
     [](CompletionAnswer& answer, const TypedLine&) {
       answer = {{{"auto", "the newest in --checkpoint"}}, ":folders"};
     }},
};

// Derives candidates of other options from their unit: "debug|info", "FILE".
void add_values(CompletionAnswer& answer, const TypedLine& line) {
  for (const CompletedValue& row : kCompletedValues)
    if (line.value_of->names.front() == row.option) return row.add(answer, line);
  const std::string& unit = line.value_of->unit;
  if (unit == "DIR" || unit == "FOLDER") answer.more = ":folders";
  if (unit == "FILE" || unit == "PATH") answer.more = ":files";
  if (unit.find('|') != std::string::npos) {
    for (size_t begin = 0; begin <= unit.size();) {
      const size_t end = std::min(unit.find('|', begin), unit.size());
      answer.candidates.push_back({unit.substr(begin, end - begin), ""});
      begin = end + 1;
    }
  }
}

void add_options(CompletionAnswer& answer, const CommandText& command) {
  for (const OptionText& option : command.options)
    for (const std::string& name : option.names) answer.candidates.push_back({name, option.help});
}

void add_operands(CompletionAnswer& answer, const TypedLine& line) {
  const std::string& command = line.command->name;
  const size_t place = line.operands.size();
  if (command == "ckpt") {
    if (place == 0)
      add_words(answer, ckpt_verbs());
    else
      answer.more = ":folders";
  } else if (command == "completion" && place == 0) {
    add_words(answer, {"bash", "fish", "zsh"});
  } else if (command == "man" && place == 0) {
    for (const CommandText& each : command_texts()) answer.candidates.push_back({each.name, each.help});
  } else if (command == "bench") {
    for (const BenchOp& op : bench_ops()) answer.candidates.push_back({op.name, ""});
    answer.candidates.push_back({"all", "one after the other"});
  } else if (command == "conform" && place == 0) {
    add_transports(answer, *line.installed);
    answer.more = ":files";
  } else if (command == "runs" || command == "init") {
    answer.more = ":folders";
  } else if (command == "draw" || (command == "diff" && place < 2)) {
    add_plans(answer, *line.installed);
    answer.more = ":files";
  } else if (place == 0 && (command == "run" || command == "check" || command == "dump" || command == "generate")) {
    add_plans(answer, *line.installed);
  }
}

const OptionText* find_option(const CommandText& command, const std::string& name) {
  for (const OptionText& option : command.options)
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end()) return &option;
  return nullptr;
}

TypedLine read_typed_line(const std::vector<std::string>& words, const std::vector<CommandText>& commands) {
  TypedLine line;
  line.command = &commands.front();
  size_t i = 0;
  if (words.size() > 1)
    for (const CommandText& command : commands)
      if (command.name == words[0] && command.name != "run") line.command = &command, i = 1;
  for (; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    const OptionText* option = word.starts_with("-") ? find_option(*line.command, word) : nullptr;
    if (option != nullptr && !option->unit.empty()) {
      if (i + 2 == words.size()) line.value_of = option;
      ++i;
    } else if (!word.starts_with("-")) {
      line.operands.push_back(word);
    }
  }
  line.last = words.empty() ? "" : words.back();
  const size_t equals = line.last.find('=');
  if (line.value_of == nullptr && line.last.starts_with("--") && equals != std::string::npos) {
    line.value_of = find_option(*line.command, line.last.substr(0, equals));
    line.before = line.last.substr(0, equals + 1);
    line.last.erase(0, equals + 1);
  }
  return line;
}

CompletionAnswer completed(const TypedLine& line, const std::vector<CommandText>& commands, bool first) {
  CompletionAnswer answer;
  if (line.value_of != nullptr) {
    add_values(answer, line);
  } else if (line.last.starts_with("-")) {
    add_options(answer, *line.command);
  } else {
    if (first)
      for (const CommandText& command : commands)
        if (command.name != "run") answer.candidates.push_back({command.name, command.help});
    add_operands(answer, line);
  }
  return answer;
}

}  // namespace

int complete_command(const std::vector<std::string>& words) {
  try {
    const std::vector<CommandText> commands = command_texts();
    const Installation installed = find_installation();
    TypedLine line = read_typed_line(words, commands);
    line.installed = &installed;
    const CompletionAnswer answer = completed(line, commands, words.size() <= 1);
    for (const Completion& each : answer.candidates)
      if (each.word.starts_with(line.last)) fmt::print("{}{}\t{}\n", line.before, each.word, each.help);
    if (*answer.more != '\0') fmt::print("{}\n", answer.more);
  } catch (const std::exception&) {
    // An invalid line has no candidates; running it reports the error.
  }
  return 0;
}

}  // namespace prun
