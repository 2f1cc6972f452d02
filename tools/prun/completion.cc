// prun completion bash|zsh|fish: prints the shell's script. All three call `prun __complete` (complete.cc) at each TAB.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "job_options.h"

namespace prun {
namespace {

// Bash splits words at "=" and ":", so the candidates lose the part before the word that it completes.
constexpr const char* kBash = R"sh(# Completion of prun for bash: eval "$(prun completion bash)"
_prun() {
  local line=${COMP_LINE:0:COMP_POINT} words word help part
  COMPREPLY=()
  read -ra words <<<"$line"
  case $line in *[[:space:]]) words+=("") ;; esac
  part=${words[-1]}
  local cut=${part%"${COMP_WORDS[COMP_CWORD]}"}
  case ${COMP_WORDS[COMP_CWORD]} in = | :) cut=$part ;; esac
  while IFS=$'\t' read -r word help; do
    case $word in
      :files) compopt -o default ;;
      :folders) compopt -o dirnames ;;
      *) COMPREPLY+=("${word#"$cut"}") ;;
    esac
  done < <(command prun __complete "${words[@]:1}" 2>/dev/null)
  case ${COMPREPLY[0]-} in *=) compopt -o nospace ;; esac
}
complete -F _prun prun
)sh";

constexpr const char* kZsh = R"sh(#compdef prun
# Completion of prun for zsh: source <(prun completion zsh)
_prun() {
  local line word more
  local -a candidates open
  while IFS= read -r line; do
    case $line in
      :*) more=$line; continue ;;
    esac
    word=${line%%$'\t'*}
    if [[ $word == *= ]]; then
      open+=("${word//:/\\:}:${line#*$'\t'}")
    else
      candidates+=("${word//:/\\:}:${line#*$'\t'}")
    fi
  done < <(command prun __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  (( ${#open} )) && _describe -V argument open -S ''
  (( ${#candidates} )) && _describe prun candidates
  case $more in
    :files) _files ;;
    :folders) _files -/ ;;
  esac
}
if [ "${funcstack[1]-}" = _prun ]; then
  _prun "$@"
elif (( $+functions[compdef] )); then
  compdef _prun prun
fi
)sh";

constexpr const char* kFish = R"sh(# Completion of prun for fish: prun completion fish | source
function __prun_complete
    for line in (command prun __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path (commandline -ct)
            case :folders
                __fish_complete_directories (commandline -ct) ''
            case '*'
                echo $line
        end
    end
end
complete -c prun -f -a '(__prun_complete)'
)sh";

struct Shell {
  std::string name;
  const char* script;
};
const Shell kShells[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

class ShellScript final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  int run() override;
  const char* json_help() const override { return nullptr; }
};

int ShellScript::run() {
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.push_back(shell.name);
  if (line_.operands.size() != 1)
    throw usage_error("which shell? prun completion bash, zsh or fish; for this one: eval \"$(prun completion bash)\"");
  for (const Shell& shell : kShells) {
    if (shell.name != line_.operands[0]) continue;
    fmt::print("{}", shell.script);
    return 0;
  }
  throw usage_error(fmt::format("no completion for '{}'{}", line_.operands[0], did_you_mean(line_.operands[0], names)));
}

}  // namespace

std::unique_ptr<Command> make_completion() { return std::make_unique<ShellScript>(); }

}  // namespace prun
