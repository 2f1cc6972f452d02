// What `prun draw` is asked for beside what it draws.
#pragma once
#include <climits>
#include <string>

namespace prun {

class Definer;
struct Options;

struct DrawSettings {
  std::string out;  // "": text
  std::string program;
  std::string title;  // "": the words that name what is drawn
  int first_step = 0, last_step = INT_MAX;
  bool text = false;
};

void define_draw_options(Definer& define, DrawSettings& settings);
// Throws usage_error: nothing to draw, an unknown form.
void check_draw_options(const Options& options);

}  // namespace prun
