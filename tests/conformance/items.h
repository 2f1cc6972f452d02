// What `prun conform` does with a suite: its items, each of cases that GoogleTest holds, run in child processes and
// told in one line. Transports and devices have suites of their own (conform.cc, device/conform.cc).
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace prun::testing {

struct Item {
  const char* name;
  const char* filter;  // its cases, as GoogleTest selects them
  const char* holds;   // what is known then
};

struct Outcome {
  bool holds = true, claimed = true;
  std::string text = "";
  bool late = false;      // not finished in time
  std::string name = "";  // of the case that failed first
};

// What is tried: the file, and what it does not mean to hold.
struct Subject {
  std::string name, path;
  std::vector<std::string> not_claimed = {};
  bool json = false;  // an object an item: item, result, text, case
};

enum class Show {
  nothing,  // of what the plugin and GoogleTest print
  plugin,
  all,  // and every failure
};

// Runs the cases that `filter` selects in one child process. A plugin that crashes or hangs costs these cases, no more.
// The text is what was wrong first, or what was not tried; `claimed` is false where nothing was.
Outcome run_cases(const std::string& filter, unsigned seconds, Show show);

// Throws usage_error for a name that is no item's; `where` begins the sentence.
void check_items(const std::vector<std::string>& names, std::span<const Item> items, const std::string& where);

// "item:case" in two.
std::pair<std::string, std::string> split_case(const std::string& word);

// The items that are chosen (none: all), a line each. Where the first does not hold, the others are not tried. The exit
// code: 0 if all that is claimed holds, else 1.
int conform(const Subject& subject, std::span<const Item> items, const std::vector<std::string>& chosen,
            const std::function<Outcome(const Item&)>& run);

}  // namespace prun::testing
