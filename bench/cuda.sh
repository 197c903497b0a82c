#!/usr/bin/env bash
# Everything that can only be known on a GPU, in one go and under five minutes: the tests, every kernel as a share of this
# chip's measured copy and product rates, and whole training steps, with PyTorch's beside them where PyTorch is installed.
#
#   bench/cuda.sh [BUILD]      BUILD: a directory built with REFRAIN_CUDA=ON; else build/cuda is configured and built first
#
# Writes cuda-CHIP-DATE.json and .md to $OUT, or to bench/results/. Exits 2 where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v nvidia-smi >/dev/null || { echo "no NVIDIA driver on this machine" >&2; exit 2; }
build=${1:-}
if [ -z "$build" ]; then
  build=build/cuda
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DREFRAIN_CUDA=ON -DREFRAIN_CUDA_ARCHITECTURES=native >/dev/null
  cmake --build "$build" --target test_cuda bench_ops bench_train bench_collectives refrain
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tests/cuda_device.sh "$build" >"$work/tests.txt" 2>&1 || true
tail -n 1 "$work/tests.txt"
for dtype in bf16 f16 f32; do
  timeout 60 "$build/bench/bench_ops" --device cuda --dtype "$dtype" --json "$work/ops-$dtype.json" >"$work/ops-$dtype.txt" || cat "$work/ops-$dtype.txt"
done
# What a reduction over NCCL is made of; where its library is missing the file says so.
timeout 60 "$build/bench/bench_collectives" --device cuda >"$work/collectives.md" 2>"$work/collectives-errors.txt" || cat "$work/collectives-errors.txt" >>"$work/collectives.md"
python=$(command -v python3 || true)
has_torch=no
[ -n "$python" ] && "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && has_torch=yes
for model in vit-l-16 gpt2-124m; do
  for round in 1 2 3; do  # interleaved, so that a chip that warms up slows all alike
    timeout 60 "$build/bench/bench_train" --device cuda --precision bf16-mixed --model "$model" --steps 8 --json "$work/$model-refrain-$round.json" || true
    if [ "$has_torch" = yes ]; then
      timeout 60 "$python" bench/peers/torch_train.py --device cuda --precision bf16-mixed --model "$model" --steps 8 >"$work/$model-eager-$round.json" || true
    fi
  done
  if [ "$has_torch" = yes ]; then  # compiling takes most of its time: once
    timeout 120 "$python" bench/peers/torch_train.py --device cuda --precision bf16-mixed --model "$model" --steps 8 --compile >"$work/$model-compiled-1.json" || true
  fi
done
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader >"$work/chip.txt"
if [ -n "$python" ]; then
  "$python" bench/peers/cuda_report.py "$work" "${OUT:-bench/results}"
else
  cp "$work"/*.json "$work"/*.txt "$work"/*.md "${OUT:-bench/results}/"  # no Python: the parts, unmerged
fi
