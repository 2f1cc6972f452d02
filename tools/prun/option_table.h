// The options of one command: each is declared once, with its unit, its variable and its help. Parsing, --help, manual
// pages and completion use them. Implemented with CLI11.
#pragma once
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace prun {

class OptionTable {
 public:
  using Read = std::function<void(const std::string& text)>;  // throws usage_error

  explicit OptionTable(CLI::App& app) : app_(app) {}
  // Sets the heading of the subsequent options.
  void group(const char* name) { group_ = name; }
  void flag(const char* name, bool& value, const char* help);
  void text(const char* name, const char* unit, std::string& value, const char* help);
  void whole(const char* name, const char* unit, int& value, int least, const char* help);
  // Declares an option whose value `read` parses. `many`: it may be repeated.
  void parsed(const char* name, const char* unit, const Read& read, const char* help, bool many = false);

 private:
  CLI::App& app_;
  const char* group_ = "";
};

}  // namespace prun
