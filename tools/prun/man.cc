// prun man [COMMAND]: prints manual pages in roff, from the tables of --help; --out FOLDER writes prun.1 and
// prun-COMMAND.1, which CMake installs.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "command_line.h"
#include "environment.h"
#include "exit_codes.h"
#include "job_options.h"

namespace prun {
namespace {

// Escapes a line of text, because roff reads "-" as a hyphen, and a leading dot or quote as a request.
std::string roff(const std::string& text) {
  std::string out;
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) out = "\\&";
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\n')
      out += "\n.br\n";
    else
      out += c;
  }
  return out;
}

std::string page_item(const std::string& head, const std::string& text) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(head), roff(text));
}

std::string options_section(const CommandText& command) {
  std::string text = ".SH OPTIONS\n";
  for (const OptionText& option : command.options) {
    std::string head = roff(join(option.names, ", "));
    text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", head,
                        option.unit.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.unit)), roff(option.help));
  }
  return text;
}

std::string page_head(const std::string& page, const std::string& help) {
  std::string upper = page;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".TH {} 1 \"\" \"prun {}\" \"prun\"\n.SH NAME\n{} \\- {}\n", roff(upper), PRUN_VERSION, roff(page),
                     roff(help));
}

std::string whole_page(const std::vector<CommandText>& commands) {
  const CommandText& run = commands.front();
  std::string text = page_head("prun", "runs parallel training plans");
  text += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR\n", roff(run.usage));
  for (size_t i = 1; i < commands.size(); ++i) text += fmt::format(".br\n\\fB{}\\fR\n", roff(commands[i].usage));
  text += ".SH DESCRIPTION\n";
  text += roff(
      "A plan is a Lua script that says what moves when: which model, over which mesh of ranks, with which strategy. "
      "prun compiles it once into a static program, verifies that program, and runs it on --nproc ranks of this "
      "machine, or of several (--nnodes). `prun PLAN --help` lists the arguments of a plan, `prun plans` the plans.");
  text += "\n.SH COMMANDS\n";
  for (size_t i = 1; i < commands.size(); ++i)
    text += page_item(commands[i].name, fmt::format("{}: prun-{}(1)", commands[i].help, commands[i].name));
  text += options_section(run) + ".SH EXIT STATUS\n";
  for (const auto& [code, what] : exit_codes()) text += page_item(std::to_string(code), what);
  text += page_item("128 + n", "ended by signal n") + ".SH ENVIRONMENT\n";
  for (const Variable& variable : variables()) text += page_item(variable.name, variable.help);
  return text;
}

std::string command_page(const CommandText& command) {
  const std::string name = "prun-" + command.name;
  return page_head(name, command.help) + fmt::format(".SH SYNOPSIS\n\\fB{}\\fR\n", roff(command.usage)) +
         options_section(command) + ".SH SEE ALSO\nprun(1)\n";
}

void write_page(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw usage_error(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
}

class Man final : public Command {
 public:
  void declare(OptionTable& table) override;
  int run() override;
  const char* json_help() const override { return nullptr; }

 private:
  std::string out_;
};

void Man::declare(OptionTable& table) { table.text("--out", "FOLDER", out_, "write the pages of all commands there"); }

int Man::run() {
  const std::vector<CommandText> commands = command_texts();
  const std::vector<std::string>& words = line_.operands;
  if (!out_.empty()) {
    const std::filesystem::path folder = out_;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    write_page(folder / "prun.1", whole_page(commands));
    for (size_t i = 1; i < commands.size(); ++i)
      write_page(folder / fmt::format("prun-{}.1", commands[i].name), command_page(commands[i]));
    return 0;
  }
  if (words.empty() || words[0] == "run") {
    fmt::print("{}", whole_page(commands));
    return 0;
  }
  if (words.size() > 1) throw usage_error(fmt::format("prun man takes one command, not {}", words.size()));
  std::vector<std::string> names;
  for (const CommandText& command : commands) {
    names.push_back(command.name);
    if (command.name != words[0]) continue;
    fmt::print("{}", command_page(command));
    return 0;
  }
  throw usage_error(fmt::format("no manual page of '{}'{}", words[0], did_you_mean(words[0], names)));
}

}  // namespace

std::unique_ptr<Command> make_man() { return std::make_unique<Man>(); }

}  // namespace prun
