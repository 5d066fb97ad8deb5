#!/bin/sh
# The kubelet's probes of the enforcer: `probe.sh startup [SECONDS]`, with its maximum wait for the
# guard, and `probe.sh liveness`. Tests append the run folder and proc. heartbeat.py describes the
# files. Each probe runs in the sidecar's hundredth of a core, so it starts no program unless it has
# to wait: then it runs sleep, and a startup probe runs mkfifo once.
#
# Content of files is only compared or printed. Numbers are checked before arithmetic, and no word
# is used as a pattern, a file name or a command. Needs a POSIX shell and proc(5).
#
# A workload that runs as our user can write the files as well. So a heartbeat only names the process
# to check, and the kernel confirms that it is in this container, is not stopped, and runs when it is
# woken. The maximum age of a heartbeat is a setting of our own container.

exec 2>/dev/null # the kubelet makes Events of all output, so only ours may be printed
ulimit -t 1         # second of CPU: a tenant's file may be endless; a probe needs a hundredth
set -f
LC_ALL=C
PATH=/usr/local/bin:/usr/bin:/bin
PASSED_WITHIN_S=40 # maximum age of a pass that lets a probe report; see container.py

kind=$1 seconds=${2:-0} run=${3:-/run/vram-enforcer} proc=${4:-/proc}

# Succeed if a word is a whole number as we write it, and short enough for arithmetic.
is_number() {
  case $1 in '' | *[!0-9]* | 0?* | ????????????????*) return 1 ;; esac
}

# Set `now` to the hundredths of a second in /proc/uptime, the clock of heartbeats.
tell_time() {
  now=0
  IFS=' .' read -r whole part _ <"$proc/uptime" && now=$((whole * 100 + 1$part - 100))
}

# Succeed if a process has this start time, proc(5)'s field 22. A name may contain brackets.
# Sets `state`, its third field.
is_alive() {
  is_number "$1" && is_number "$2" && read -r stat <"$proc/$1/stat" || return
  # shellcheck disable=SC2086 # split into words on purpose
  set -- "$2" ${stat##*)}
  state=$2
  [ "${21}" = "$1" ]
}

# Succeed if a process is in our container: this probe sees the same cgroups for both. In a private
# cgroup namespace ours is `/` and all others begin with `/..`. No tenant can enter it. The process
# must not be this probe itself.
is_of_our_container() {
  [ "$1" != $$ ] && {
    while read -r ours <&3; do
      read -r theirs <&4 && [ "$ours" = "$theirs" ] || return 1
    done
    ! read -r _ <&4
  } 3<"$proc/self/cgroup" 4<"$proc/$1/cgroup"
}

# Set `ran` to the time and number of runs of a process on a CPU. Fails if the kernel does not count
# them, or the process has ended.
tell_runs() {
  ran= times=
  read -r ran _ times <"$proc/$1/schedstat" && is_number "$times" && [ "$times" -gt 0 ] &&
    ran="$ran $times"
}

# Succeed if a process runs when it is woken. The guard may sleep for a minute, so it need not run
# by itself during a probe. A tenant could forge a record of an earlier probe. So we wake the guard
# by a signal that it handles and other processes ignore. No signal wakes a process that waits in
# the kernel (D) for a driver or a disk: the age of its heartbeat decides.
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

# Set `limit` to the maximum age of a heartbeat in hundredths of a second: three intervals of
# observation, at least 15 s, since a throttled process with a slow driver is late, not dead. An
# unreadable interval counts as short.
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
  [ "$limit" -le 18000 ] || limit=18000 # a policy allows 60 s at most
}

# Succeed if a file may be read or created: a tenant's pipe would block us, a device never ends.
is_plain() {
  [ -f "$run/$1" ] || [ ! -e "$run/$1" ]
}

# Set `left` to the sentence of a process in a file; fail if that process has ended.
read_left() {
  left=
  is_plain "$1" && read -r who since left <"$run/$1"
  [ -n "$left" ] && is_alive "$who" "$since"
}

# Set `why` to the sentence of a waiting sidecar or a failed self-test; to $1 if there is none.
# A sentence of an ended process is from the previous container: the volume outlives it.
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

# Set `why` to the reason why the probe fails; empty if the enforcer works. The first heartbeat comes
# after the self-test, so startup and liveness need the same answer. A heartbeat of an ended process
# is from before a restart.
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

# Check again whenever the enforcer writes to the pipe, until it guards, has failed or the time is
# up. The pipe then ends, since `sleep` was its last writer. It is open before the check, so no write
# is missed. Polling would use the CPU that a starting sidecar needs itself.
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

# If the enforcer works, fail once for a verdict if the previous probe passed. A verdict that cannot
# be marked as reported is not reported, since it would be reported repeatedly.
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
# After a failed self-test its container ends, and this probe with it: print the reason now.
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
