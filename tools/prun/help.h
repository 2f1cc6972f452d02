// What --help prints: the commands and the options in two columns, wrapped at the width of the terminal.
#pragma once
#include <string>
#include <vector>

#include "command.h"

namespace prun {

struct HelpRow {
  std::string left, text;
};

// Columns of the terminal on standard output; 100 if it is not a terminal or is narrower than 40.
int terminal_columns();
// One row below the other. A left side that is too long for its column has a line of its own.
std::string help_rows(const std::vector<HelpRow>& rows, int columns);
std::string help_paragraph(const std::string& text, int columns);
// Of `prun` as a whole, or of a command.
std::string usage(const CommandRow& row, const Command& command);

}  // namespace prun
