// The commands of bin/prun_first, which only runs plans. In a fresh clone tools/run builds this program first, so that
// a plan trains while the rest compiles; bin/prun runs all other commands.
#include <fmt/format.h>

#include "base/error.h"
#include "cluster_hosts.h"
#include "command.h"
#include "complete.h"

namespace prun {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw usage_error(fmt::format("this program only runs plans, without {}: use tools/run, or build bin/prun", what));
}

class Later final : public Command {
 public:
  explicit Later(const char* name) : name_(name) {}
  void declare(OptionTable&) override {}
  bool takes_all() const override { return true; }
  int run() override { refuse(name_); }

 private:
  const char* name_;
};

}  // namespace

#define PRUN_LATER(name) \
  std::unique_ptr<Command> make_##name() { return std::make_unique<Later>("prun " #name); }
PRUN_LATER(generate)
PRUN_LATER(eval)
PRUN_LATER(predict)
PRUN_LATER(check)
PRUN_LATER(sim)
PRUN_LATER(calibrate)
PRUN_LATER(tune)
PRUN_LATER(dump)
PRUN_LATER(plans)
PRUN_LATER(plugins)
PRUN_LATER(doctor)
PRUN_LATER(conform)
PRUN_LATER(ckpt)
PRUN_LATER(runs)
PRUN_LATER(status)
PRUN_LATER(explain)
PRUN_LATER(clean)
PRUN_LATER(draw)
PRUN_LATER(diff)
PRUN_LATER(bench)
PRUN_LATER(init)
PRUN_LATER(version)
PRUN_LATER(completion)
PRUN_LATER(man)
#undef PRUN_LATER

int complete_command(const std::vector<std::string>&) { return 0; }

std::vector<std::string> take_place_among_hosts(JobSpec&, const std::string&, const GivenPlace&) {
  refuse("--cluster");
}
GivenPlace given_place(const CommandLine&) { return {}; }

}  // namespace prun
