#!/usr/bin/env bash
# The CUDA tests on a real GPU: the same programs that run under the emulator elsewhere, and the command with --device cuda.
#
#   tests/cuda_device.sh [BUILD]      BUILD: a directory built with REFRAIN_CUDA=ON and tests; else build/cuda is configured
#                                     for the GPU at hand and built first
#
# Last line `N passed, N failed`; exits 1 when something failed, 2 when there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-}
if [ -z "$build" ]; then
  build=build/cuda
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DREFRAIN_CUDA=ON -DREFRAIN_CUDA_ARCHITECTURES=native >/dev/null
  cmake --build "$build" --target test_cuda refrain
fi
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader || {
  echo "no NVIDIA driver on this machine"
  exit 2
}

passed=0
failed=0
log=$(mktemp)
runs=$(mktemp -d)
trap 'rm -rf "$log" "$runs"' EXIT

if "$build/tests/cuda/test_cuda" >"$log" 2>&1; then
  ok=$(sed -n 's/^All tests passed (.* in \([0-9]*\) test cases\{0,1\}).*/\1/p' "$log" | tail -n 1)
  [ "${ok:-0}" -gt 0 ] && echo "ok      test_cuda ($ok tests)" || { failed=1; cat "$log"; echo "FAILED  test_cuda ran no test"; }
  passed=${ok:-0}
else
  tail -n 200 "$log"
  line=$(grep '^test cases:' "$log" | tail -n 1 || true)
  passed=$(sed -n 's/.*| *\([0-9]*\) passed.*/\1/p' <<<"$line")
  failed=$(sed -n 's/.*| *\([0-9]*\) failed.*/\1/p' <<<"$line")
  passed=${passed:-0}
  failed=${failed:-1}
  [ "$failed" -gt 0 ] || failed=1
  echo "FAILED  test_cuda"
fi

# A few steps of the quickstart's training, where its images are: the loss must fall, and the peak be the plan's.
if [ -d /usr/share/datasets/fashion-mnist ]; then
  if "$build/apps/refrain" train examples/vit-fashion-mnist.toml --device cuda --epochs 0 --max-steps 50 --run-dir "$runs/vit" >"$log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      refrain train --device cuda"
    tail -n 3 "$log"
  else
    failed=$((failed + 1))
    cat "$log"
    echo "FAILED  refrain train --device cuda"
  fi
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
