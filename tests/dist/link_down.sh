#!/usr/bin/env bash
# Two machines, as network namespaces, train together; then their link goes down. Both sides must name a rank of the other's and
# end within 10 s. Needs root and iproute2.
#
#   tests/dist/link_down.sh REFRAIN CONFIG.toml [--KEY VALUE …]
set -u
if [ "$#" -lt 2 ]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,6p
  exit 2
fi
refrain=$1
shift
work=$(mktemp -d)
a=refrain-a-$$ b=refrain-b-$$
clean_up() {
  kill -9 ${pids[@]+"${pids[@]}"} 2>/dev/null
  ip netns delete "$a" 2>/dev/null
  ip netns delete "$b" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
pids=()
ip netns add "$a" && ip netns add "$b" &&
  ip link add ra$$ netns "$a" type veth peer name rb$$ netns "$b" &&
  ip -n "$a" addr add 10.99.0.1/24 dev ra$$ && ip -n "$b" addr add 10.99.0.2/24 dev rb$$ &&
  ip -n "$a" link set lo up && ip -n "$b" link set lo up && ip -n "$a" link set ra$$ up && ip -n "$b" link set rb$$ up || exit 2

export REFRAIN_TOKEN=link-down-$$-$RANDOM
for node in 0 1; do
  [ "$node" = 0 ] && space=$a || space=$b
  ip netns exec "$space" "$refrain" launch -n 2 --hosts a,b --node-rank "$node" --master 10.99.0.1:29500 -- \
    train "$@" --run-dir "$work/run" >"$work/log$node" 2>&1 &
  pids+=($!)
done
for ((i = 0; i < 300; ++i)); do
  grep -q 'step' "$work/log0" && break
  sleep 0.1
done
sleep 2
ip -n "$a" link set ra$$ down
start=$(date +%s%N)
declare -A ended=()
while [ "${#ended[@]}" -lt 2 ]; do
  for node in 0 1; do
    # A rank that has named the lost one is about to end.
    if [ -z "${ended[$node]:-}" ] && [ "$(grep -c 'is lost: ' "$work/log$node")" -ge 2 ]; then
      ended[$node]=$((($(date +%s%N) - start) / 1000000))
    fi
  done
  if [ $((($(date +%s%N) - start) / 1000000)) -gt 30000 ]; then break; fi
  sleep 0.05
done
codes=()
for pid in "${pids[@]}"; do
  wait "$pid"
  codes+=($?)
done
grep -h 'is lost: ' "$work/log0" "$work/log1"
echo "both ranks of machine a knew after ${ended[0]:-never} ms, of b after ${ended[1]:-never} ms; exit codes ${codes[*]}"
[ "${ended[0]:-99999}" -le 10000 ] && [ "${ended[1]:-99999}" -le 10000 ] && [ "${codes[0]}" = 6 ] && [ "${codes[1]}" = 6 ]
