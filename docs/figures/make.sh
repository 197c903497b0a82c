#!/usr/bin/env bash
# Makes the figures of docs/memory.md: each is the memory.svg that `refrain plan --export` writes.
#
#   docs/figures/make.sh [REFRAIN]      REFRAIN: the built command [build/release/apps/refrain]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
refrain=$(realpath "${1:-$root/build/release/apps/refrain}")
cd "$root/docs/figures"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

figure() {  # NAME TITLE FLAGS…
  local name=$1 title=$2; shift 2
  "$refrain" plan "$@" --title "$title" --eval-batch 1 --train-samples 4096 --test-samples 64 --export "$work/$name" >/dev/null
  mv "$work/$name/memory.svg" "$name.svg"
}
vit=(--preset vit_s_16 --image-size 224 --channels 3 --num-classes 10 --optimizer adamw)

figure plain "ViT-S/16, batch 16, AdamW: everything is kept" "${vit[@]}" --batch 16
figure block "A checkpoint region per block" "${vit[@]}" --batch 16 --checkpoint block
figure nested "Regions in regions" "${vit[@]}" --batch 16 --checkpoint nested
figure selective "A region per block that keeps the attention's results" "${vit[@]}" --batch 16 --checkpoint selective --checkpoint-keep attention
figure fused "Updates inside backward: few gradients are alive at a time" "${vit[@]}" --batch 16 --checkpoint block --update fused
figure accumulated "Four micro-batches, one after the other" "${vit[@]}" --batch 4 --accumulate 4 --checkpoint block
figure layerwise "Four micro-batches layer by layer, fused updates" "${vit[@]}" --batch 4 --accumulate 4 --checkpoint block --update fused --accumulate-schedule layerwise
figure two_passes "The same with clipping: backward measures, then updates" "${vit[@]}" --batch 4 --accumulate 4 --checkpoint block --update fused --accumulate-schedule layerwise --clip-norm 1
figure bf16 "bf16-true: half the bytes of everything" "${vit[@]}" --batch 16 --precision bf16-true
figure budget "A budget of 600 MiB" "${vit[@]}" --batch 16 --checkpoint budget --memory-budget 600MiB
gpt2=(--preset gpt2 --context 512 --batch 4 --checkpoint block --update fused)
figure whole_loss "GPT-2, 4 x 512 tokens: all logits at once" "${gpt2[@]}"
figure chunked_loss "GPT-2, 4 x 512 tokens: logits of 256 rows at a time" "${gpt2[@]}" --loss-chunk 256
