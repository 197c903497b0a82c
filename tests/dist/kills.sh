#!/usr/bin/env bash
# Kills and stops ranks at random moments, and checks that the others end in time, name the rank, and leave nobody behind.
#
#   tests/dist/kills.sh KILLS STOPS COMMAND…
#
# COMMAND starts a launcher, such as `build/test/apps/refrain launch -n 4 -- train c.toml --strategy ddp` (which must run longer
# than the moments, up to 2 s from its start unless REFRAIN_LATEST_MS says otherwise), or `build/test/tests/test_dist "rank
# launcher"`, four ranks that do collectives for ever. SIGKILL: survivors have 3 s. SIGSTOP: REFRAIN_HEARTBEAT_TIMEOUT (8 s) and
# 4 more. Where REFRAIN_TEST_AFTER is set, that command must succeed after each.
set -u
export REFRAIN_TEST_KILLS=1
if [ "$#" -lt 3 ]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,11p
  exit 2
fi
kills=$1 stops=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
heartbeat=${REFRAIN_HEARTBEAT_TIMEOUT:-8}
earliest=${REFRAIN_EARLIEST_MS:-300} latest=${REFRAIN_LATEST_MS:-2000}
failures=0 slowest_kill=0 slowest_stop=0

now_ms() { echo $(($(date +%s%N) / 1000000)); }
is_alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }
wrong() {
  failures=$((failures + 1))
  echo "  WRONG: $1"
  sed 's/^/    /' "$work/log" | tail -20
}

run_one() {
  local signal=$1 limit_ms=$2
  shift 2
  "$@" >"$work/log" 2>&1 &
  local launcher=$! ranks=() index victim start elapsed pid code
  sleep "$(printf '0.%03d' "$earliest")"
  for ((tries = 0; tries < 100; ++tries)); do
    read -ra ranks 2>/dev/null <"/proc/$launcher/task/$launcher/children"
    [ "${#ranks[@]}" -lt 2 ] || break
    sleep 0.01
  done
  if [ "${#ranks[@]}" -lt 2 ]; then
    wrong "the launcher has ${#ranks[@]} ranks"
    kill -9 "$launcher" 2>/dev/null
    wait "$launcher" 2>/dev/null
    return
  fi
  local moment=$((RANDOM * 32768 + RANDOM))
  moment=$((moment % (latest - earliest + 1)))
  sleep "$((moment / 1000)).$(printf '%03d' $((moment % 1000)))"
  index=$((RANDOM % ${#ranks[@]}))
  victim=${ranks[$index]}
  if ! is_alive "$launcher"; then
    wrong "the command had ended before the moment came"
    return
  fi
  start=$(now_ms)
  kill "-$signal" "$victim"
  for ((;;)); do
    local left=0
    for pid in "${ranks[@]}"; do
      [ "$pid" = "$victim" ] || ! is_alive "$pid" || left=$((left + 1))
    done
    elapsed=$(($(now_ms) - start))
    [ "$left" -eq 0 ] && break
    if [ "$elapsed" -gt $((limit_ms + 20000)) ]; then break; fi
    sleep 0.02
  done
  wait "$launcher"
  code=$?
  for pid in "${ranks[@]}"; do
    if is_alive "$pid"; then
      wrong "process $pid is left over"
      kill -9 "$pid"
    fi
  done
  echo "  $signal rank $index after $((earliest + moment)) ms: survivors gone after $elapsed ms, exit code $code"
  [ "$elapsed" -le "$limit_ms" ] || wrong "survivors took $elapsed ms, limit $limit_ms"
  [ "$code" -ne 0 ] || wrong "exit code 0"
  grep -q "rank $index (.*) is lost: " "$work/log" || wrong "nobody names rank $index"
  ${REFRAIN_TEST_AFTER:-true} >>"$work/log" 2>&1 || wrong "afterwards $REFRAIN_TEST_AFTER fails"
  if [ "$signal" = KILL ]; then
    [ "$elapsed" -le "$slowest_kill" ] || slowest_kill=$elapsed
  else
    [ "$elapsed" -le "$slowest_stop" ] || slowest_stop=$elapsed
  fi
}

for ((i = 0; i < kills; ++i)); do run_one KILL 3000 "$@"; done
for ((i = 0; i < stops; ++i)); do
  run_one STOP "$(awk -v h="$heartbeat" 'BEGIN { printf "%d", (h + 4) * 1000 }')" "$@"
done
echo "$kills kills, survivors gone within $slowest_kill ms; $stops stops, within $slowest_stop ms; $failures wrong"
[ "$failures" -eq 0 ]
