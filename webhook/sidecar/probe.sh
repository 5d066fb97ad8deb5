#!/bin/sh
# The kubelet's probes of the enforcer: `probe.sh startup [SECONDS]`, with how long it waits for the
# guard, and `probe.sh liveness`; then, for tests, the run folder and proc. heartbeat.py says what
# the files are. Each probe runs in the sidecar's hundredth of a core, so this starts no program,
# except where it has to wait: sleep, and a startup probe mkfifo once.
#
# What a file says is only ever compared or printed: a number is one before it is reckoned with, and
# no word of a file is a pattern, a file's name or a command. Needs a POSIX shell and proc(5).
#
# A workload that runs as our user can write the files as well. So a heartbeat says which process to
# check, and the kernel says what it is worth: that process is of this very container, it is not
# stopped, and it runs when it is woken. How old a beat may get is our own container's setting.

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
# Sets `state`, its third field.
is_alive() {
  is_number "$1" && is_number "$2" && read -r stat <"$proc/$1/stat" || return
  # shellcheck disable=SC2086 # into words, on purpose
  set -- "$2" ${stat##*)}
  state=$2
  [ "${21}" = "$1" ]
}

# Say whether a process is of our own container: in the same cgroups, as this probe sees both. In a
# cgroup namespace of our own, ours is `/` and all others begin with `/..`. No tenant can enter it.
# It may not be this probe itself either.
is_of_our_container() {
  [ "$1" != $$ ] && {
    while read -r ours <&3; do
      read -r theirs <&4 && [ "$ours" = "$theirs" ] || return 1
    done
    ! read -r _ <&4
  } 3<"$proc/self/cgroup" 4<"$proc/$1/cgroup"
}

# Set `ran` to how long and how often a process has had a CPU, as the kernel counts it. Fails where
# it does not count, or the process is over.
tell_runs() {
  ran= times=
  read -r ran _ times <"$proc/$1/schedstat" && is_number "$times" && [ "$times" -gt 0 ] &&
    ran="$ran $times"
}

# Say whether a process runs when it is woken. The guard may sleep for a minute, so it need not run
# by itself while a probe lasts. What an earlier probe saw could be compared with, but a tenant could
# write that too. So we wake it, by a signal that it has a handler for and others ignore. Where it
# waits within the kernel (D), for a driver or a disk, no signal wakes it: its beat's age judges.
runs_when_woken() {
  [ "$state" != D ] && tell_runs "$1" || return 0
  ran_before=$ran tries=0
  kill -s URG "$1" || return
  while tell_runs "$1" && [ "$ran" = "$ran_before" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 150 ] || return # after 5 s
    [ "$tries" -lt 100 ] || sleep 0.1 || sleep 1
  done
}

# Set `limit` to how old a beat may get, in hundredths of a second: three intervals of observation,
# and 15 s at least, for a throttled process with a slow driver is late, not dead. An interval that
# cannot be read is short.
tell_limit() {
  limit=1500 interval_ms=0 text=${VRAM_POLL_INTERVAL:-}
  case $text in *[!0-9.hms]* | [!0-9]* | ?????????????????????????????????*) text= ;; esac
  while [ -n "$text" ]; do
    number=${text%%[hms]*} text=${text#"${text%%[hms]*}"}
    unit=${text%%[0-9]*} text=${text#"${text%%[0-9]*}"}
    whole=${number%%.*} part=000
    case $number in *.*) part=${number#*.}000 ;; esac
    case $part in *[!0-9]*) return ;; esac
    while [ "$whole" != "${whole#0?}" ]; do whole=${whole#0}; done
    case $unit in h) unit=3600000 ;; m) unit=60000 ;; s | '') unit=1000 ;; ms) unit=1 ;; *) return ;; esac
    is_number "$whole" && [ "$whole" -le 60000 ] || return
    interval_ms=$((interval_ms + whole * unit + (1${part%"${part#???}"} - 1000) * unit / 1000))
  done
  [ "$interval_ms" -le 5000 ] || limit=$((interval_ms * 3 / 10))
  [ "$limit" -le 18000 ] || limit=18000 # 60 s is the most that a policy allows
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
scan() {
  why= failed= pid= began= beat= rest=
  if ! { is_plain heartbeat && read -r pid began beat rest <"$run/heartbeat"; } &&
    [ ! -e "$run/heartbeat" ]; then
    explain "not guarding yet: the self-test has not finished"
    return
  fi
  tell_time
  tell_limit
  if ! { is_number "$pid" && is_number "$began" && is_number "$beat" &&
    [ -z "$rest" ] && [ "$beat" -le "$now" ]; }; then
    why="the heartbeat in $run cannot be read"
  elif ! is_alive "$pid" "$began"; then
    explain "process $pid, which guarded, is over; no other has taken its place yet"
  elif ! is_of_our_container "$pid"; then
    why="process $pid is not of this container: the heartbeat in $run is not the enforcer's"
  elif [ $((now - beat)) -gt "$limit" ]; then
    why="the last observation was $(((now - beat) / 100)) s ago, more than $((limit / 100))"
    why="$why: stuck or stopped"
  else
    case $state in
    T | t | Z | X | x) why="process $pid, which guarded, is stopped (state $state)" ;;
    *) runs_when_woken "$pid" || why="process $pid, which guarded, does not run: starved or stopped" ;;
    esac
  fi
}

# Scan again whenever the enforcer rings, until it guards, has failed or the time is up: then the
# pipe is at its end, for `sleep` was the last who had it open to write. It is open before we scan,
# so no ring is missed. Probes that poll would take what a starting sidecar needs itself.
wait_for_guard() {
  [ -p "$run/bell" ] || mkfifo -m 600 "$run/bell"
  [ -p "$run/bell" ] || return
  {
    sleep "$seconds" >&3 &
    exec 4<"$run/bell"
  } 3<>"$run/bell"
  over=
  while scan
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
scan
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
