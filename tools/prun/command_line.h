// Parses a command line into a command that is ready to run, and describes all commands.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace prun {

// The declared options of a command: for --help, completion and manual pages.
struct OptionText {
  std::vector<std::string> names;  // "--quiet", "-q"
  std::string unit, help;          // unit: "" for a flag
  std::string group;               // heading in a long list
};
struct CommandText {
  std::string name, usage, help;
  std::vector<OptionText> options;
};
std::vector<CommandText> command_texts();  // in the order of commands()

struct ParsedCommand {
  const CommandRow* row = nullptr;
  std::unique_ptr<Command> command;
  bool help = false;
  std::string log_level;  // "": PRUN_LOG, or warning
};
// Declares the options, parses the words and extracts the operands. It does not call the command's settle(). Throws
// usage_error.
ParsedCommand parse_words(const std::vector<std::string>& words);

// This executable and the files installed with it.
struct Installation {
  std::string program, lua_dir;
  std::vector<std::string> plugin_dirs;
};
// Throws usage_error if lua/ is missing next to the program.
Installation find_installation();

}  // namespace prun
