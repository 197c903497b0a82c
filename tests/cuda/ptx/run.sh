#!/usr/bin/env bash
# The CUDA tests on the PTX that nvcc made, and whether every kernel ran there. Needs a build with nvcc; no GPU.
#
#   tests/cuda/ptx/run.sh BUILD [FILTER…]
#
# Without a filter a kernel that was never launched is a failure. The last line is `N passed, N failed`.
set -uo pipefail
build=${1:?the build directory is missing}
shift
report=$(mktemp) log=$(mktemp)
trap 'rm -f "$report" "$log"' EXIT
passed=0 failed=0
for program in test_ptx test_cuda_ptx; do
  filters=()
  if [ "$program" = test_cuda_ptx ]; then filters=("$@"); fi
  REFRAIN_PTX_COVERAGE=$report "$build/tests/cuda/$program" "${filters[@]}" >"$log" 2>&1
  status=$?
  tail -n 40 "$log"
  # Catch: "All tests passed (9 assertions in 2 test cases)" or "test cases: 5 | 4 passed | 1 failed".
  good=$(sed -nE 's/^All tests passed \(.* in ([0-9]+) test cases?\)/\1/p; s/^test cases: .* ([0-9]+) passed.*/\1/p' "$log" | tail -n 1)
  bad=$(sed -nE 's/^test cases: .* ([0-9]+) failed.*/\1/p' "$log" | tail -n 1)
  if [ "$status" -ne 0 ] && [ "${bad:-0}" -eq 0 ]; then bad=1; fi
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0}))
done

total=$(wc -l <"$report")
missing=$(awk -F '\t' '$1 == 0' "$report" | wc -l)
echo "launches  blocks  ms  kernel, over its instances"
awk -F '\t' '{ name = $4; sub(/^void /, "", name); sub(/[<(].*/, "", name); l[name] += $1; b[name] += $2; ms[name] += $3 }
             END { for (name in l) printf "%8d %9d %7d  %s\n", l[name], b[name], ms[name], name }' "$report" | sort -k4
echo "$((total - missing)) of $total kernels executed"
if [ $# -eq 0 ] && { [ "$missing" -ne 0 ] || [ "$total" -eq 0 ]; }; then
  awk -F '\t' '$1 == 0 { print "never executed: " $4 }' "$report"
  failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
