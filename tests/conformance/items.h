// The framework of `prun conform`: items, each a set of GoogleTest cases, run in child processes and reported in one
// line each. Transports and devices have their own suites (conform.cc, device/conform.cc).
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace prun::testing {

struct Item {
  const char* name;
  const char* filter;  // GoogleTest filter of its cases
  const char* holds;   // the guarantee, for users
};

struct Outcome {
  bool holds = true, claimed = true;
  std::string text = "";
  bool late = false;      // exceeded its time limit
  std::string name = "";  // of the first failed case
};

// The tested file, and the items that it does not claim.
struct Subject {
  std::string name, path;
  std::vector<std::string> not_claimed = {};
  bool json = false;  // print an object per item: item, result, text, case
};

enum class Show {
  nothing,  // output of the plugin and GoogleTest
  plugin,
  all,  // and every failure
};

// Runs the cases that `filter` selects in one child process, so that a crash or hang affects only these cases. The text
// is the first error, or the reason why cases were not tried; `claimed` is false if none was.
Outcome run_cases(const std::string& filter, unsigned seconds, Show show);

// Throws usage_error for a name that is not an item; `where` begins the message.
void check_items(const std::vector<std::string>& names, std::span<const Item> items, const std::string& where);

// Splits "item:case".
std::pair<std::string, std::string> split_case(const std::string& word);

// Runs the chosen items (none = all) and prints a line each. If the first fails, the others are not tried. Returns the
// exit code: 0 if all claimed items hold, else 1.
int conform(const Subject& subject, std::span<const Item> items, const std::vector<std::string>& chosen,
            const std::function<Outcome(const Item&)>& run);

}  // namespace prun::testing
