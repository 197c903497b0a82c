#!/usr/bin/env bash
# Set up, build and run every test. Needs nothing but a Debian 12 (or newer) and a network the first time.
#
#   ./test.sh [--no-install] [PRESET]      PRESET: test (default), asan or tsan
#
# Prints one line a test program and a last line `N passed, N failed`; exits 1 when something failed.
set -euo pipefail
cd "$(dirname "$0")"

preset=test
for argument in "$@"; do
  case "$argument" in
    --no-install) NO_INSTALL=1 ;;
    test|asan|tsan) preset=$argument ;;
    *) echo "usage: ./test.sh [--no-install] [test|asan|tsan]" >&2; exit 2 ;;
  esac
done

source cmake/packages.sh
install_packages "${REFRAIN_BUILD_PACKAGES[@]}" "${REFRAIN_TEST_PACKAGES[@]}" "${REFRAIN_DATA_PACKAGES[@]}"

cmake --preset "$preset" >build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
rm -f build-configure.log
# The tsan preset tests some rooms only: what they do not need is not built.
targets=(all)
[ "$preset" != tsan ] || targets=(test_core test_data test_autograd test_dist)
cmake --build "build/$preset" --target "${targets[@]}" -- -k 0 || { echo "the build failed"; echo "0 passed, 1 failed"; exit 1; }

passed=0
failed=0
run() {  # NAME COMMAND…: counts a check that passes or fails as a whole
  local name=$1; shift
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); cat "$log"; echo "FAILED  $name"
  fi
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run "layering" cmake -P cmake/CheckLayering.cmake

logs=$(mktemp -d)
trap 'rm -rf "$log" "$logs"' EXIT
evaluate() {  # NAME: counts what the program of that name printed
  local name=$1 ok=0 bad=0 status seconds line output=$logs/$1
  read -r status seconds <"$output.end"
  # Catch2 closes with "All tests passed (A assertions in T test cases)" or "test cases: T | P passed | F failed".
  if grep -q '^All tests passed' "$output"; then
    ok=$(sed -n 's/^All tests passed (.* in \([0-9]*\) test cases\{0,1\}).*/\1/p' "$output" | tail -n 1)
  else
    line=$(grep '^test cases:' "$output" | tail -n 1 || true)
    ok=$(sed -n 's/.*| *\([0-9]*\) passed.*/\1/p' <<<"$line")
    bad=$(sed -n 's/.*| *\([0-9]*\) failed.*/\1/p' <<<"$line")
  fi
  ok=${ok:-0}; bad=${bad:-0}
  # A program that crashed, or ran nothing, has failed whatever it counted.
  if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
  if [ "$status" -eq 0 ] && [ "$ok" -eq 0 ]; then bad=1; echo "$name ran no test"; fi
  if [ "$bad" -ne 0 ]; then tail -n 200 "$output"; echo "FAILED  $name ($ok passed, $bad failed, $seconds s)"; else echo "ok      $name ($ok tests, $seconds s)"; fi
  passed=$((passed + ok)); failed=$((failed + bad))
}

# Under AddressSanitizer as many programs run at a time as there are cores, each with one thread (tsan is there for threads), and
# without the sweeps: tests that go through many combinations of what others run too, each slowly there. (A filter that only leaves
# out brings Catch's hidden tests in; ~[.] keeps them out.)
at_a_time=1 tests=()
if [ "$preset" = asan ]; then at_a_time=$(nproc) tests=('~[sweep]~[.]'); export REFRAIN_NUM_THREADS=${REFRAIN_NUM_THREADS:-1}; fi
names=()
for program in build/"$preset"/tests/test_* build/"$preset"/tests/cuda/test_cuda_emulated build/"$preset"/tests/cuda/test_ptx; do
  [ -x "$program" ] && [ -f "$program" ] || continue
  name=$(basename "$program")
  while [ "$(jobs -rp | wc -l)" -ge "$at_a_time" ]; do wait -n || true; done
  names+=("$name")
  (
    start=$SECONDS status=0
    "$program" "${tests[@]}" >"$logs/$name" 2>&1 || status=$?
    echo "$status $((SECONDS - start))" >"$logs/$name.end"
  ) &
  if [ "$at_a_time" -eq 1 ]; then wait; evaluate "$name"; fi
done
wait
if [ "$at_a_time" -gt 1 ]; then for name in "${names[@]}"; do evaluate "$name"; done; fi
if [ "$preset" = test ] && [ ! -x build/test/tests/cuda/test_cuda_emulated ]; then
  echo "skipped CUDA kernels on the host: there are no CUDA headers"
fi

# The page of a report in a headless browser, once and not under every sanitizer; skipped where there is no browser.
skipped=0
if [ "$preset" = test ]; then
  tests/browser/report_test.sh "build/$preset/apps/refrain" | tee "$log" || true
  passed=$((passed + $(grep -c '^ok ' "$log" || true)))
  failed=$((failed + $(grep -c '^FAILED ' "$log" || true)))
  skipped=$(grep -c '^skipped ' "$log" || true)
fi

[ "$skipped" -eq 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
