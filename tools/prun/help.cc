// Every text comes from command_texts(), like manual pages and completion.
#include "help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "command_line.h"

namespace prun {
namespace {

constexpr size_t kLeft = 30;         // columns of the left side, with the gap after it
constexpr size_t kManyOptions = 20;  // longer lists get headings

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Wraps the text to lines of at most `width` columns, all but the first after `indent` spaces.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string lines;
  size_t used = 0;
  for (const std::string& word : split(text, ' ')) {
    const size_t columns = columns_of(word);
    if (used > 0 && used + 1 + columns > width) {
      lines += "\n" + std::string(indent, ' ');
      used = 0;
    } else if (used > 0) {
      lines += ' ';
      ++used;
    }
    lines += word;
    used += columns;
  }
  return lines;
}

HelpRow row_of(const OptionText& option) {
  const std::string names = join(option.names, ", ");
  return {"  " + names + (option.unit.empty() ? "" : " " + option.unit), option.help};
}

std::string option_rows(const CommandText& command, const std::string& heading, int columns) {
  std::vector<std::string> groups;
  if (command.options.size() > kManyOptions)
    for (const OptionText& option : command.options)
      if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) groups.push_back(option.group);
  std::string text;
  for (const std::string& group : groups.empty() ? std::vector<std::string>{heading} : groups) {
    std::vector<HelpRow> rows;
    for (const OptionText& option : command.options)
      if (groups.empty() || option.group == group) rows.push_back(row_of(option));
    text += fmt::format("\n{}:\n{}", group, help_rows(rows, columns));
  }
  return text;
}

}  // namespace

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40 ? size.ws_col : 100;
}

std::string help_rows(const std::vector<HelpRow>& rows, int columns) {
  std::string text;
  for (const HelpRow& row : rows) {
    text += row.left;
    if (!row.text.empty()) {
      const size_t left = columns_of(row.left);
      text += left < kLeft ? std::string(kLeft - left, ' ') : "\n" + std::string(kLeft, ' ');
      text += wrapped(row.text, std::max<size_t>(static_cast<size_t>(columns) - kLeft, 10), kLeft);
    }
    text += '\n';
  }
  return text;
}

std::string help_paragraph(const std::string& text, int columns) {
  return wrapped(text, static_cast<size_t>(columns), 0) + "\n";
}

std::string usage(const CommandRow& row, const Command& asked) {
  const int columns = terminal_columns();
  const std::vector<CommandText> commands = command_texts();
  const CommandText& command =
      *std::find_if(commands.begin(), commands.end(), [&](const CommandText& each) { return each.name == row.name; });
  const bool whole = &command == &commands.front();
  std::vector<HelpRow> rows;
  for (const CommandText& each : commands)
    if (whole || &each == &command) rows.push_back({each.usage, each.help});
  std::string text = help_rows(rows, columns);
  if (whole) text += "\n`prun COMMAND --help` lists the options of a command. The options of prun PLAN:\n";
  if (const std::string before = asked.help_before(); !before.empty()) text += "\n" + help_paragraph(before, columns);
  text += option_rows(command, "options", columns);
  if (const std::string after = asked.help_after(); !after.empty()) text += "\n" + help_paragraph(after, columns);
  return text;
}

}  // namespace prun
