// A command of prun. Its file has its options, checks and work; its maker is one line in the list of commands.cc.
//
//     words --> make() --> declare() --> take_operands() --> settle() --> run()
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "option_table.h"

namespace prun {

// A parsed command line.
struct CommandLine {
  std::vector<std::string> words;     // all words as typed, with the command's name
  std::vector<std::string> operands;  // words that are neither options nor their values
  std::function<bool(const char* option)> given;
  bool json = false;  // --json
};

class Command {
 public:
  Command() = default;
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  virtual void declare(OptionTable& options) = 0;
  // The command takes any options and operands, unread.
  virtual bool takes_all() const { return false; }
  // Extracts a plan from the operands; --help also calls this. Throws usage_error.
  virtual void take_operands(std::vector<std::string>& /*operands*/) {}
  // Completes the options and checks their combination. Throws usage_error.
  virtual void settle() {}
  // Returns the exit code. Throws Error.
  virtual int run() = 0;

  // Returns the job of a command with a plan or transports; otherwise null.
  virtual JobSpec* job() { return nullptr; }
  virtual const char* json_help() const { return "one JSON object on one line"; }  // null: the command has no --json
  // Paragraphs of --help before and after the options.
  virtual std::string help_before() const { return ""; }
  virtual std::string help_after() const { return ""; }

  CommandLine& line() { return line_; }

 protected:
  CommandLine line_;
};

struct CommandRow {
  const char *name, *usage, *help;
  std::unique_ptr<Command> (*make)();
};
// Returns all commands. The first is `prun PLAN`.
const std::vector<CommandRow>& commands();

}  // namespace prun
