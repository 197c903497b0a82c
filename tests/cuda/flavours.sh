#!/usr/bin/env bash
# The CUDA tests under the emulator in every flavour: plain with threads in three orders, plain with deferred launches and device
# memory that the host cannot reach, AddressSanitizer with UBSan, and the race detector; then whether all kernels were executed.
#
#   tests/cuda/flavours.sh BUILD [FILTER]     BUILD: where test_cuda_emulated, _asan and _race are built; FILTER: Catch2's
#
# Without a filter whole trainings and CUDA graphs run forward and deferred, where streams and the host's waits matter. The other
# flavours are about what is inside a kernel, and run every test but those; what a graph does may outlive the tensors it was
# captured with, as on a stream, and under AddressSanitizer their bytes are closed by then.
#
# A line a flavour, then each kernel's launches by flavour; the last line is `N passed, N failed`. With a filter nothing is said of
# kernels that were not executed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
filter=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

flavour() {  # NAME PROGRAM VARIABLE=VALUE…
  local name=$1 program=$build/tests/cuda/$2 tests=$filter status=0 ok bad start=$SECONDS
  shift 2
  case ${filter:-$name} in
    reverse|random|asan|race) tests='~"cuda training:*"~"cuda graphs:*"~[.]' ;;
    deferred) tests='~"cuda training: a small vit*"~[.]' ;;  # two long ones
  esac
  env REFRAIN_EMULATOR_REPORT="$work/$name" "$@" "$program" ${tests:+"$tests"} >"$work/log" 2>&1 || status=$?
  if grep -q '^All tests passed' "$work/log"; then
    ok=$(sed -n 's/^All tests passed (.* in \([0-9]*\) test cases\{0,1\}).*/\1/p' "$work/log" | tail -n 1)
    bad=0
  else
    ok=$(sed -n 's/^test cases:.*| *\([0-9]*\) passed.*/\1/p' "$work/log" | tail -n 1)
    bad=$(sed -n 's/^test cases:.*| *\([0-9]*\) failed.*/\1/p' "$work/log" | tail -n 1)
  fi
  ok=${ok:-0}; bad=${bad:-0}
  # A program that crashed, or ran nothing, has failed whatever it counted.
  if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; }; then bad=1; fi
  passed=$((passed + ok)); failed=$((failed + bad))
  if [ "$bad" -eq 0 ]; then
    echo "ok      CUDA emulated, $name ($ok tests, $((SECONDS - start)) s)"
  else
    tail -n 100 "$work/log"
    echo "FAILED  CUDA emulated, $name ($ok passed, $bad failed, $((SECONDS - start)) s)"
  fi
}

executed() {  # NAME FLAVOUR
  [ -z "$filter" ] || return 0
  if "$here/kernels_executed.sh" "$build" "$work/$1" "$2" >"$work/log" 2>&1; then
    passed=$((passed + 1)); echo "ok      CUDA emulated, $1: $(tail -n 1 "$work/log")"
  else
    failed=$((failed + 1)); cat "$work/log"; echo "FAILED  CUDA emulated, $1: not every kernel was executed"
  fi
}

# Launches of each kernel, its template instances together, a column a flavour.
launches() {
  local name
  for name in "$@"; do [ ! -s "$work/$name" ] || sed "s/^/$name\t/" "$work/$name"; done | c++filt | awk -F '\t' -v flavours="$*" '
    { kernel = $5; sub(/^void /, "", kernel); sub(/[<(].*/, "", kernel); sub(/^refrain::/, "", kernel)
      if (kernel !~ /kernels::/ || kernel ~ /^emulator_test/) next
      kernels[kernel]; count[kernel, $1] += $2 }
    END {
      num_flavours = split(flavours, each, " ")
      printf "%-56s", "launches of"
      for (f = 1; f <= num_flavours; f++) printf " %9s", each[f]
      print ""
      for (kernel in kernels) {
        line = sprintf("%-56s", kernel)
        for (f = 1; f <= num_flavours; f++) line = line sprintf(" %9d", count[kernel, each[f]])
        print line | "sort"
      }
    }'
}

flavour forward test_cuda_emulated REFRAIN_EMULATOR_ORDER=forward
executed forward plain
flavour reverse test_cuda_emulated REFRAIN_EMULATOR_ORDER=reverse
flavour random test_cuda_emulated REFRAIN_EMULATOR_ORDER=random
flavour deferred test_cuda_emulated REFRAIN_EMULATOR_DEFERRED=1 REFRAIN_EMULATOR_STRICT=1
flavour asan test_cuda_asan REFRAIN_EMULATOR_ORDER=forward
executed asan asan
flavour race test_cuda_race REFRAIN_EMULATOR_ORDER=forward
executed race race
launches forward reverse random deferred asan race
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
