// The output of --help: commands and options in two columns, wrapped at the width of the terminal.
#pragma once
#include <string>
#include <vector>

#include "command.h"

namespace prun {

struct HelpRow {
  std::string left, text;
};

// Returns the columns of the terminal on standard output; 100 if it is not a terminal or is narrower than 40.
int terminal_columns();
// Renders rows below each other. A left side that exceeds its column gets its own line.
std::string help_rows(const std::vector<HelpRow>& rows, int columns);
std::string help_paragraph(const std::string& text, int columns);
// Returns the help of `prun` as a whole, or of a command.
std::string usage(const CommandRow& row, const Command& command);

}  // namespace prun
