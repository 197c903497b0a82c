#!/bin/sh
# Memory of the whole process against what the arena has reserved, for a run of about 1 GB: ViT-S/16 on made-up images, 3 steps.
#   bench/memory/process.sh [path to refrain] [more flags of refrain train]
# "RSS minus start-up" is the process's peak minus what it held when the run began.
set -eu
refrain=${1:-build/release/apps/refrain}
[ $# -gt 0 ] && shift
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 - "$directory" <<'PYTHON'
import random, struct, sys
random.seed(1)
for prefix, count in (("train", 48), ("t10k", 16)):
    with open(f"{sys.argv[1]}/{prefix}-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4I", 0x803, count, 224, 224) + random.randbytes(count * 224 * 224))
    with open(f"{sys.argv[1]}/{prefix}-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count)))
PYTHON
: >"$directory/config.toml"
"$refrain" train "$directory/config.toml" --preset vit_s_16 --data-path "$directory" --batch 24 --epochs 0 --max-steps 3 --snapshot-every 0 --run-dir "$directory/run" \
  "$@" >"$directory/log" 2>&1 || { cat "$directory/log"; exit 1; }
python3 - "$directory/run/summary.json" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1]))
reserved, outside = summary["reserved_peak_bytes"], summary["outside_arena_bytes"]
live, peak = summary["peak_bytes"]["total"], summary["reserved_peak_bytes"] + summary["outside_arena_bytes"]["peak"]
grown = peak - outside["start"]
print(f"live peak                {live:>13}")
print(f"reserved by the arena    {reserved:>13}  {reserved / live:.4f} of the live peak")
print(f"RSS at the start         {outside['start']:>13}")
print(f"RSS at the peak          {peak:>13}")
print(f"RSS minus start-up       {grown:>13}  {100 * (grown / reserved - 1):+.2f} % of reserved")
PYTHON
