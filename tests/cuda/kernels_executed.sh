#!/usr/bin/env bash
# Whether every kernel that was compiled has run: lists the __global__ functions in the objects, template instances one by one,
# that no report of REFRAIN_EMULATOR_REPORT names.
#
#   tests/cuda/kernels_executed.sh BUILD REPORT [FLAVOUR]     FLAVOUR: plain (default), asan or race
#
# The last line is `N of M kernels executed`; exits 1 when some were not, or there are none.
set -euo pipefail
build=$1
report=$2
case ${3:-plain} in plain) objects=refrain_emulated_kernels ;; *) objects=refrain_emulated_kernels_$3 ;; esac
directory=$build/kernels/emulator/CMakeFiles/$objects.dir
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A kernel is what a .cu file takes the address of, for cuda::launch(), in a namespace named …kernels: other device functions are
# called, and their relocations are calls. Debug and unwind sections take addresses of everything.
find "$directory" -name '*.cu.o' -not -path '*/tests/cuda/*' -print0 | sort -z | while IFS= read -r -d '' object; do
  readelf -rW "$object" | awk '/^Relocation section/ { skip = /debug|eh_frame|gcc_except|init_array/ } !skip && $3 ~ /^R_/ && $3 !~ /PLT/ { print $5 }'
done | grep -E '^_Z' | sort -u >"$work/referenced"
paste "$work/referenced" <(c++filt <"$work/referenced") | grep -E $'\t''(void )?refrain::[A-Za-z_:]*kernels::[^(]*\(' |
  grep -vE 'guard variable|vtable|typeinfo' | cut -f1 | sort -u >"$work/candidates"
# Functions only: arrays and constants are referenced too.
find "$directory" -name '*.cu.o' -not -path '*/tests/cuda/*' -print0 | xargs -0 readelf -sW | awk '$4 == "FUNC" { print $8 }' | sort -u >"$work/functions"
comm -12 "$work/candidates" "$work/functions" >"$work/kernels"
cut -f4 "$report" | sort -u >"$work/executed"
comm -23 "$work/kernels" "$work/executed" >"$work/missing"
total=$(wc -l <"$work/kernels")
missing=$(wc -l <"$work/missing")
[ "$missing" -eq 0 ] || { echo "never executed:"; c++filt <"$work/missing" | sed 's/^/  /'; }
echo "$((total - missing)) of $total kernels executed"
[ "$missing" -eq 0 ] && [ "$total" -gt 0 ]
