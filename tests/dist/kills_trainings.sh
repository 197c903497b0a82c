#!/usr/bin/env bash
# Kills and stops ranks of trainings at random moments, strategy by strategy. Each training goes on from where the one before was
# broken off.
#
#   tests/dist/kills_trainings.sh KILLS STOPS REFRAIN [STRATEGY…]
#
# REFRAIN is the command, such as build/test/apps/refrain. As kills.sh, which see for the clocks, and besides: after each kill or
# stop the newest snapshot must be whole; at the end a run goes on once more, undisturbed, and must have the weights, bit for bit,
# of one that was never disturbed. STRATEGY: ddp, local_sgd, sharded, sharded_local_sgd, offload; all without.
set -u
if [ "$#" -lt 3 ]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,10p
  exit 2
fi
kills=$1 stops=$2 refrain=$(realpath "$3")
shift 3
[ "$#" -gt 0 ] || set -- ddp local_sgd sharded sharded_local_sgd offload
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
seq 1 2500 >text.txt
cat >config.toml <<'EOF'
model = "gpt2"
data_format = "text"
data_path = "text.txt"
context = 16
width = 32
depth = 3
num_heads = 2
batch = 4
lr = 0.01
schedule = "constant"
epochs = 0
max_steps = 1000000
snapshot_every = 2
eval_every = 0
EOF

flags_of() {
  case "$1" in
    ddp) echo "--strategy ddp" ;;
    local_sgd) echo "--strategy local_sgd --local-steps 4" ;;
    sharded) echo "--strategy sharded" ;;
    sharded_local_sgd) echo "--strategy local_sgd --local-steps 4 --shard-ranks 2" ;;
    offload) echo "--strategy sharded --offload all --checkpoint block" ;;
    *) echo "there is no strategy '$1' here" >&2; exit 2 ;;
  esac
}
newest_step() { ls "$1/snapshots" 2>/dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }

# For kills.sh, after each kill or stop. What is named as still being written is no snapshot yet.
cat >check.sh <<'EOF'
"$REFRAIN" evaluate run >evaluation 2>&1 || { cat evaluation; exit 1; }
! grep skipped evaluation | grep -v "was still being written when its process ended"
EOF
export REFRAIN=$refrain REFRAIN_TEST_AFTER="bash $work/check.sh"

failures=0
for strategy in "$@"; do
  flags=$(flags_of "$strategy") || exit 2
  echo "$strategy"
  rm -rf run whole
  # There is a snapshot from the beginning, however slow the machine.
  # shellcheck disable=SC2086
  "$refrain" launch -n 4 -- train config.toml --run-dir run --max-steps 4 $flags >log 2>&1 || tail -20 log
  # shellcheck disable=SC2086
  bash "$here/kills.sh" "$kills" "$stops" "$refrain" launch -n 4 -- train config.toml --resume --run-dir run $flags || failures=$((failures + 1))
  broken_at=$(newest_step run)
  steps=$((${broken_at:-0} + 6))
  # shellcheck disable=SC2086
  if "$refrain" launch -n 4 -- train config.toml --resume --run-dir run --max-steps "$steps" $flags >log 2>&1 &&
    "$refrain" launch -n 4 -- train config.toml --run-dir whole --max-steps "$steps" $flags >>log 2>&1 &&
    cmp "run/snapshots/step-$steps/model.safetensors" "whole/snapshots/step-$steps/model.safetensors" >>log 2>&1; then
    echo "  broken off $((kills + stops)) times, the last time after a snapshot of step ${broken_at:-0}: the bits of an unbroken run after $steps"
  else
    failures=$((failures + 1))
    echo "  WRONG: not what an unbroken run of $steps steps comes to"
    tail -20 log
  fi
done
echo "$# strategies, $failures wrong"
[ "$failures" -eq 0 ]
