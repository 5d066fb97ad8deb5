#!/bin/sh
# The kubelet's probes of the enforcer: `probe.sh startup [SECONDS]`, with how long it waits for the
# guard, and `probe.sh liveness`; then, for tests, the run folder and proc. heartbeat.py says what
# the files are. Each probe runs in the sidecar's hundredth of a core, so this starts no program,
# except a startup probe that has to wait: mkfifo once, and sleep.
#
# What a file says is only ever compared or printed: a number is one before it is reckoned with, and
# no word of a file is a pattern, a file's name or a command. Needs a POSIX shell and proc(5).

exec 2>/dev/null # the kubelet makes Events of all that is printed; these are to be our words
ulimit -t 1         # second of CPU: a tenant's file may have no end, and a probe takes a hundredth
set -f
LC_ALL=C
PATH=/usr/local/bin:/usr/bin:/bin
PASSED_WITHIN_S=40 # how old a pass may be that lets a probe report; why: container.py

kind=$1 seconds=${2:-0} run=${3:-/run/vram-enforcer} proc=${4:-/proc}

# Say whether a word is a whole number as we write them, and short enough for arithmetic.
is_number() {
  case $1 in '' | *[!0-9]* | 0?* | ????????????????*) return 1 ;; esac
}

# Set `now` to the hundredths of a second in /proc/uptime, the clock of heartbeats.
tell_time() {
  now=0
  IFS=' .' read -r whole part _ <"$proc/uptime" && now=$((whole * 100 + 1$part - 100))
}

# Say whether a process is the one that started then: proc(5)'s field 22. A name may hold brackets.
is_alive() {
  is_number "$1" && is_number "$2" && read -r stat <"$proc/$1/stat" || return
  # shellcheck disable=SC2086 # into words, on purpose
  set -- "$2" ${stat##*)}
  [ "${21}" = "$1" ]
}

# Say whether a file may be read, or made: a pipe of a tenant's would hold us up, a device fill us.
is_plain() {
  [ -f "$run/$1" ] || [ ! -e "$run/$1" ]
}

# Set `left` to what a process left in a file; fail where that process is over.
read_left() {
  left=
  is_plain "$1" && read -r who since left <"$run/$1"
  [ -n "$left" ] && is_alive "$who" "$since"
}

# Set `why` to what a sidecar that waits, or a self-test that failed, left; to $1 where neither did.
# What a process left that is over is of the container before: the volume outlives it.
explain() {
  if read_left waiting; then
    why=$left
  elif read_left failure; then
    why="the self-test failed: $left" failed=1
  else
    why=${left:+"not guarding yet: the self-test has not finished; the one before failed: $left"}
    why=${why:-$1}
  fi
}

# Set `why` to why the probe fails, or to nothing where the enforcer is at work. The first beat comes
# after the self-test, so one answer serves startup and liveness. A beat of a process that is over is
# from before a restart.
look() {
  why= failed= pid= began= beat= limit= rest=
  if ! { is_plain heartbeat && read -r pid began beat limit rest <"$run/heartbeat"; } &&
    [ ! -e "$run/heartbeat" ]; then
    explain "not guarding yet: the self-test has not finished"
    return
  fi
  tell_time
  if ! { is_number "$pid" && is_number "$began" && is_number "$beat" && is_number "$limit" &&
    [ -z "$rest" ] && [ "$beat" -le "$now" ]; }; then
    why="the heartbeat in $run cannot be read"
  elif ! is_alive "$pid" "$began"; then
    explain "process $pid, which guarded, is over; no other has taken its place yet"
  elif [ $((now - beat)) -gt "$limit" ]; then
    why="the last observation was $(((now - beat) / 100)) s ago, more than $((limit / 100))"
    why="$why: stuck or stopped"
  fi
}

# Look again whenever the enforcer rings, until it guards, has failed or the time is up: then the
# pipe is at its end, for `sleep` was the last who had it open to write. It is open before we look,
# so no ring is missed. Probes that poll would take what a starting sidecar needs itself.
wait_for_guard() {
  [ -p "$run/bell" ] || mkfifo -m 600 "$run/bell"
  [ -p "$run/bell" ] || return
  {
    sleep "$seconds" >&3 &
    exec 4<"$run/bell"
  } 3<>"$run/bell"
  over=
  while look
    [ -n "$why" ] && [ -z "$failed$over" ]; do
    read -r _ <&4 || over=1
  done
  kill $!
}

# Where the enforcer is at work, fail once for a verdict, if the probe before passed. What cannot be
# noted costs no more than an Event: it is not reported, for it would be again and again.
report() {
  passed= id= verdict= reported=
  is_plain passed || return
  read -r passed <"$run/passed"
  printf '' >"$run/passed" || passed=
  [ -z "$why" ] || return
  if is_number "$passed" && [ "$passed" -le "$now" ] &&
    [ $((now - passed)) -le $((PASSED_WITHIN_S * 100)) ] &&
    is_plain verdict && is_plain reported; then
    read -r id verdict <"$run/verdict"
    read -r reported <"$run/reported"
    if [ -n "$verdict" ] && [ "$id" != "$reported" ] && printf '%s\n' "$id" >"$run/reported"; then
      why=$verdict
      return
    fi
  fi
  printf '%s\n' "$now" >"$run/passed"
}

case $kind in
startup | liveness) is_number "$seconds" ;;
*) false ;;
esac || {
  echo "usage: $0 startup|liveness [SECONDS [RUN_FOLDER [PROC]]]"
  exit 2
}
look
said=$why
# Where the self-test fails, its container ends and takes us with it: what is said now counts.
printf '%.1000s' "$said"
if [ "$kind" = liveness ]; then
  report
elif [ -n "$why" ] && [ -z "$failed" ] && [ "$seconds" -gt 0 ]; then
  wait_for_guard
fi
answer=${why:-guarding}
if [ -z "$said" ]; then
  printf '%.1000s\n' "$answer"
elif [ "$answer" != "$said" ]; then
  printf '; then: %.1000s\n' "$answer"
else
  echo
fi
[ -z "$why" ]
