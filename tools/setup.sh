# Sourced by tools/run, tools/test and tools/bench: installs what is missing, configures, builds what has changed.
#
# It is quiet: one line on stderr per phase that has something to do, everything else in build/PRESET/setup.log. With
# nothing to do it costs one comparison of files and one dry run of Ninja.
# shellcheck shell=bash

prun_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# say TEXT: one line for the user.
say() { printf 'prun: %s\n' "$*" >&2; }

# phase TEXT COMMAND...: runs a command with its output in the log; shows the log's end and leaves when it fails.
phase() {
  say "$1"
  printf '\n== %s\n' "$1" >>"$log"
  if ! "${@:2}" >>"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    say "failed: $1 (the whole log: $log)"
    exit 2
  fi
}

# package_names "USE ...": the packages of the build, and those of the uses (test, bench).
package_names() {
  local uses=" $1 " first second
  while read -r first second _; do
    case $first in
      '' | '#'*) ;;
      *) if [ -z "$second" ]; then echo "$first"; elif [[ $uses == *" $first "* ]]; then echo "$second"; fi ;;
    esac
  done <"$prun_root/tools/packages.txt"
}

install_missing() {
  local missing=() name
  if ! command -v dpkg-query >/dev/null; then
    say "no Debian here: the packages of tools/packages.txt must be there already"
    return
  fi
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' 2>/dev/null | sed -n 's/^installed //p' | sed 's/:.*//')
  for name in "$@"; do
    grep -qxF -- "$name" <<<"$installed" || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "missing packages; as root: apt-get install ${missing[*]}"
      exit 2
    fi
    say "sudo is needed to install ${missing[*]}"
    sudo -v || exit 2
    as_root=(sudo)
  fi
  phase "updating the list of packages" "${as_root[@]}" apt-get -q update
  phase "installing ${missing[*]}" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${missing[@]}"
}

# set_up PRESET "USE..." TARGET...: afterwards the targets are built in build/PRESET. More options for CMake's first
# run stand in the array cmake_options.
cmake_options=()
set_up() {
  local build=$prun_root/build/$1 preset=$1 uses=$2
  shift 2
  # What the stamp holds decides whether packages and configuration are looked at again.
  local wanted
  wanted="$(<"$prun_root/tools/packages.txt") $uses ${cmake_options[*]}"
  if [ -f "$build/build.ninja" ] && [ -f "$build/setup.stamp" ] && [ "$(<"$build/setup.stamp")" = "$wanted" ] &&
    [[ $(ninja -C "$build" -n "$@" 2>/dev/null) == *'no work to do.' ]]; then
    return
  fi
  mkdir -p "$build"
  log=$build/setup.log
  exec 8>"$build/setup.lock"
  flock 8 # two at once: the second finds everything done
  : >"$log"
  if [ ! -f "$build/setup.stamp" ] || [ "$(<"$build/setup.stamp")" != "$wanted" ] || [ ! -f "$build/build.ninja" ]; then
    # shellcheck disable=SC2046
    install_missing $(package_names "$uses")
    phase "configuring build/$preset" cmake -S "$prun_root" --preset "$preset" "${cmake_options[@]}"
    printf '%s\n' "$wanted" >"$build/setup.stamp"
  fi
  if [[ $(ninja -C "$build" -n "$@" 2>/dev/null) != *'no work to do.' ]]; then
    phase "building build/$preset" ninja -C "$build" "$@"
  fi
  exec 8>&-
}
