#!/usr/bin/env bash
# report.html in a real browser: the page checks its own sums, its drawing and its controls (report.html#selftest), headless.
#
#   tests/browser/report_test.sh REFRAIN     REFRAIN: the built command
#
# Prints a line a check: ok, FAILED or skipped (where no browser is installed). Exits 1 when one failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ "$#" -eq 1 ] && [ -x "$1" ] || { echo "usage: $0 REFRAIN" >&2; exit 2; }
refrain=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")

browser=""
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null; then browser=$(command -v "$name"); break; fi
done
checks=("a plan's report" "a plan's report on a phone" "a run's report" "names that try to be markup" "a wrong sum is found" "a lost tensor is found" "a damaged file is found")
if [ -z "$browser" ]; then
  for name in "${checks[@]}"; do echo "skipped browser: $name (no Chromium or Chrome is installed)"; done
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# selftest PAGE [WIDTH]: the page's own verdict on stdout. The page writes it when it is done; a page whose script does not
# run has none.
selftest() {
  local sandbox=()
  [ "$(id -u)" -ne 0 ] || sandbox=(--no-sandbox)
  timeout 120 "$browser" --headless=new "${sandbox[@]}" --disable-gpu --disable-extensions --no-first-run --user-data-dir="$work/profile" \
    --window-size="${2:-1280},1000" --virtual-time-budget=20000 --dump-dom "file://$1#selftest" 2>"$work/browser.log" |
    awk '/<pre id="selftest">(ok|FAILED)/ { inside = 1 } inside { print } inside && /<\/pre>/ { exit }' | sed 's/.*<pre id="selftest">//; s/<\/pre>.*//'
}

failed=0
check() {  # NAME pass|fail PAGE [WIDTH]
  local name=$1 wanted=$2 verdict
  verdict=$(selftest "$3" "${4:-}")
  local last got=none
  last=$(tail -n 1 <<<"$verdict")
  case "$last" in "all ok") got=pass ;; FAILED*) got=fail ;; esac
  # A damaged file never gets as far as a verdict.
  if [ "$wanted" = none ] && [ "$got" = none ]; then got=$wanted; fi
  if [ "$got" = "$wanted" ]; then
    echo "ok      browser: $name ($(grep -c '^ok' <<<"$verdict") checks on the page)"
  else
    grep -v '^ok' <<<"$verdict"
    tail -n 5 "$work/browser.log"
    echo "FAILED  browser: $name: wanted $wanted, got $got"
    failed=1
  fi
}

"$refrain" plan --preset vit_s_16 --image-size 64 --channels 3 --num-classes 10 --batch 16 --optimizer adamw --export "$work/plan" >"$work/plan.log" 2>&1 ||
  { cat "$work/plan.log"; echo "FAILED  browser: refrain plan --export"; exit 1; }
plan=$work/plan/report.html
check "${checks[0]}" pass "$plan"
check "${checks[1]}" pass "$plan" 500

# A run with its plan's curve over it, where there is something to train on.
if [ -d /usr/share/datasets/fashion-mnist ]; then
  printf 'width = 16\ndepth = 2\nnum_heads = 2\nbatch = 16\nepochs = 0\nmax_steps = 4\neval_batch = 1000\neval_every = 0\noptimizer = "adamw"\ntimeline = 2\n' >"$work/run.toml"
  "$refrain" train "$work/run.toml" --run-dir "$work/run" >"$work/run.log" 2>&1 || { cat "$work/run.log"; echo "FAILED  browser: refrain train"; exit 1; }
  check "${checks[2]}" pass "$work/run/report.html"
else
  echo "skipped browser: ${checks[2]} (Fashion-MNIST is not there)"
fi

"$refrain" report "$here/hostile.json" "$work/hostile.html" >/dev/null || { echo "FAILED  browser: refrain report"; exit 1; }
check "${checks[3]}" pass "$work/hostile.html"

# The same page with other data must fail: the check can.
sed 's/"peak_bytes":\([0-9]*\)\([0-9]\),"reserved/"peak_bytes":\11\2,"reserved/' "$here/hostile.json" >"$work/sum.json"
cmp -s "$here/hostile.json" "$work/sum.json" && { echo "FAILED  browser: the sample could not be changed"; exit 1; }
"$refrain" report "$work/sum.json" "$work/sum.html" >/dev/null && check "${checks[4]}" fail "$work/sum.html"
# Of the two lists of blocks the second is the peak's: without its first tensor it no longer sums to the peak.
awk '/^"blocks":/ && ++lists == 2 { sub(/\[\[[^]]*\],/, "[") } { print }' "$here/hostile.json" >"$work/lost.json"
cmp -s "$here/hostile.json" "$work/lost.json" && { echo "FAILED  browser: the sample could not be changed"; exit 1; }
"$refrain" report "$work/lost.json" "$work/lost.html" >/dev/null && check "${checks[5]}" fail "$work/lost.html"
sed 's/"curve":{/"curve":{{/' "$work/hostile.html" >"$work/damaged.html"
check "${checks[6]}" none "$work/damaged.html"
exit "$failed"
