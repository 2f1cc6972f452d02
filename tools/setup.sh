# Sourced by tools/run and tools/test: installs missing packages, configures, builds changed targets.
#
# On stderr it prints only the phases that have work to do, with their progress; everything else goes to
# build/PRESET/setup.log. Without work it costs one comparison of files and one dry run of Ninja, and writes nothing, so
# that a finished build also serves users who may not write to it.
# shellcheck shell=bash

prun_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Prints its arguments as one line for the user.
say() { printf 'prun: %s\n' "$*" >&2; }

# tell_progress TEXT: prints Ninja's progress and last target from the log: on a terminal one line that changes,
# otherwise a line every 10 seconds. Runs concurrently with the command until it is killed.
tell_progress() {
  local begin=$SECONDS timer percent="" part="" line
  exec {timer}<> <(:) # a read with a timeout is a sleep without a process
  while kill -0 $$ 2>/dev/null; do
    read -rt 1 -u "$timer"
    if [ ! -t 2 ] && (((SECONDS - begin) % 10 != 0)); then continue; fi
    while read -r line; do
      [[ $line =~ ^\[\ *([0-9]+%)\]\ [A-Z] ]] && percent=${BASH_REMATCH[1]}
      [[ $line =~ object\ ([^ ]*)/CMakeFiles/ ]] && part=${BASH_REMATCH[1]}
    done < <(tail -n 3 "$log")
    line="prun: $1${percent:+: $percent}${part:+ ($part)}, $((SECONDS - begin)) s"
    if [ -t 2 ]; then printf '\r%s\e[K' "$line" >&2; else printf '%s\n' "$line" >&2; fi
  done
}

# phase TEXT COMMAND...: runs a command with its output in the log; if it fails, prints the log's end and exits.
phase() {
  local teller failed=0
  say "$1"
  printf '\n== %s\n' "$1" >>"$log"
  tell_progress "$1" &
  teller=$!
  NINJA_STATUS='[%p] ' "${@:2}" >>"$log" 2>&1 </dev/null || failed=1
  kill "$teller"
  wait "$teller" 2>/dev/null
  if [ -t 2 ]; then printf '\r\e[K' >&2; fi
  if [ "$failed" = 1 ]; then
    tail -n 30 "$log" >&2
    say "failed: $1 (the whole log: $log)"
    exit 2
  fi
}

# package_names "USE ...": prints the packages of the build and of the uses (the first words in tools/packages.txt).
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

# found: prints the paths of optional inputs of a build, one per line, so that a later installation is detected.
found() {
  local file cuda=${CUDA_HOME:-/usr/local/cuda}
  for file in /usr/include/gtest/gtest.h {/usr/lib/*,/usr/local/lib}/pkgconfig/{ucx,libfabric}.pc \
    {"$cuda","${NCCL_HOME:-}",/usr}/include/nccl.h {"$cuda","${CUDNN_HOME:-}",/usr}/include/cudnn_graph.h; do
    if [ -e "$file" ]; then printf '%s\n' "$file"; fi
  done
  command -v nvcc ccache "${CUDAToolkit_ROOT:-$cuda}/bin/nvcc"
}

# is_up_to_date BUILD TARGET...: whether Ninja has nothing to do.
is_up_to_date() {
  [[ $(ninja -C "$1" -n "${@:2}" 2>/dev/null) == *'no work to do.' ]]
}

# is_built BUILD STAMP TARGET...
is_built() {
  [ -f "$1/build.ninja" ] && [ -f "$1/setup.stamp" ] && [ "$(<"$1/setup.stamp")" = "$2" ] && is_up_to_date "$1" "${@:3}"
}

# wait_for_build BUILD STAMP TARGET...: waits until the lock (descriptor 8) is free or its owner has built the targets.
wait_for_build() {
  until flock -w 2 8 || is_built "$@"; do :; done
}

# configured_elsewhere BUILD: prints the path at which a copied or moved build was configured; fails if it is this one.
configured_elsewhere() {
  local line
  line=$(grep -s '^CMAKE_HOME_DIRECTORY:' "$1/CMakeCache.txt") && [ "${line#*=}" != "$prun_root" ] && echo "${line#*=}"
}

# require_writable BUILD TARGET...: unless this user can write to the build, exits with the fix. A build that others
# wrote and that has the targets will do: its stamp differs only by what `found` lists.
require_writable() {
  local folder=$1 why
  why=$({ mkdir -p "$1" && : >>"$1/setup.lock" && : >>"$1/setup.log"; } 2>&1) && return
  if [ -f "$1/setup.stamp" ] && ! configured_elsewhere "$1" >/dev/null && is_up_to_date "$@"; then return; fi
  while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
  say "cannot build in $folder, which belongs to $(stat -c %U "$folder"): ${why##*: }"
  say "run this command once as a user who can write there, or copy $prun_root and run the copy's tools/run"
  exit 2
}

# set_up PRESET "USE..." TARGET...: builds the targets in build/PRESET. The array cmake_options has more options for
# CMake's first run.
cmake_options=()
set_up() {
  local build=$prun_root/build/$1 preset=$1 uses=$2
  shift 2
  # Packages and configuration are checked again only if the stamp differs. Its first line lists the uses, which
  # accumulate, so that alternating uses do not reconfigure.
  local wanted use old=""
  if [ -f "$build/setup.stamp" ]; then read -r old <"$build/setup.stamp"; fi
  for use in $uses; do [[ " $old " == *" $use "* ]] || old+=" $use"; done
  uses=${old# }
  wanted="$uses
$prun_root $(<"$prun_root/tools/packages.txt") ${cmake_options[*]} $(found)"
  if is_built "$build" "$wanted" "$@"; then return; fi
  require_writable "$build" "$@"
  if [ ! -w "$build/setup.lock" ]; then return; fi
  log=$build/setup.log
  exec 8>"$build/setup.lock"
  if ! flock -n 8; then
    phase "waiting for the build of build/$preset that already runs" wait_for_build "$build" "$wanted" "$@"
    if is_built "$build" "$wanted" "$@"; then
      exec 8>&-
      return
    fi
  fi
  : >"$log"
  local elsewhere
  if elsewhere=$(configured_elsewhere "$build"); then
    # Ninja's files contain absolute paths: a copy would compile the original's sources, a moved clone would find none.
    say "build/$preset was configured in $elsewhere; building it for $prun_root"
    find "$build" -mindepth 1 ! -name 'setup.l*' -delete
  fi
  if [ ! -f "$build/setup.stamp" ] || [ "$(<"$build/setup.stamp")" != "$wanted" ] || [ ! -f "$build/build.ninja" ]; then
    # shellcheck disable=SC2046
    install_missing $(package_names "$uses")
    phase "configuring build/$preset" cmake -S "$prun_root" --preset "$preset" "${cmake_options[@]}"
    printf '%s\n' "$wanted" >"$build/setup.stamp"
  fi
  if ! is_up_to_date "$build" "$@"; then
    phase "building build/$preset" ninja -C "$build" "$@"
  fi
  exec 8>&-
}

# build_meanwhile PRESET TARGET...: builds the targets in the background, unless a build is running. Ninja inherits the
# lock, so that another set_up waits for it. Ninja remains in this process group, so that Ctrl-C ends it with the
# command running then; after that command the terminal's Ctrl-C reaches another group, so the message names the
# process. It is not a child of that command, which would have to wait for it.
build_meanwhile() {
  local build=$prun_root/build/$1 pid
  shift
  [ -w "$build/setup.lock" ] || return 0
  exec 8>"$build/setup.lock"
  if flock -n 8; then
    # env restores SIGINT, which a shell ignores in background commands.
    pid=$(
      NINJA_STATUS='[%p] ' env --default-signal=INT nice -n 19 ninja -C "$build" "$@" >>"$build/setup.log" 2>&1 </dev/null &
      echo $!
    )
    say "building the other commands in the background (log: $build/setup.log); Ctrl-C ends it with the plan, later: kill $pid"
  fi
  exec 8>&-
}
