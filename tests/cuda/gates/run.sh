#!/usr/bin/env bash
# Gates on the machine code that nvcc made: registers, stack (spills lie there), static shared memory, and instructions that
# kernels are meant to have. Needs a build with the CUDA backend, and no GPU.
#
#   tests/cuda/gates/run.sh BUILD [--markdown FILE]
#
# Prints what fails, and a table, a line a kernel and architecture over all its template instances; FILE gets it as markdown.
# The last line is `N passed, N failed`: a check an instance, architecture and limit.
set -euo pipefail
build=${1:?the build directory is missing}
markdown=/dev/null
if [ "${2:-}" = --markdown ]; then markdown=${3:?}; fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find "$build/CMakeFiles/refrain_device.dir" -name '*.cu.o' -print0 | sort -z | xargs -0 "$build/tests/cuda/cubin_report" >"$work/report"
[ -s "$work/report" ] || { echo "no machine code in $build: configure with REFRAIN_CUDA=ON"; echo "0 passed, 1 failed"; exit 1; }
cut -f7 "$work/report" | c++filt | sed -e 's/^void //' -e 's/(refrain::.*$//' >"$work/names"

paste "$work/report" "$work/names" | awk -F '\t' -v markdown="$markdown" '
  function base(name) { sub(/[<(].*/, "", name); sub(/^refrain::/, "", name); return name }
  function widest(table, key, value) { if (!(key in table) || value > table[key]) table[key] = value }
  function narrowest(table, key, value) { if (!(key in table) || value < table[key]) table[key] = value }
  function check(holds, what) { if (holds) passed++; else { failed++; print "FAILED: " what } }
  FNR == NR {
    if ($0 ~ /^#/ || NF < 4) next
    kind[++rules] = $1; architecture[rules] = $2; kernel[rules] = $3; value[rules] = $4; next
  }
  {
    name = $8; who = name " " $1
    stack = 0
    for (r = 1; r <= rules; r++) {
      if ($1 !~ architecture[r]) continue
      if (name !~ kernel[r]) continue
      used[r] = 1
      if (kind[r] == "stack" && value[r] > stack) stack = value[r]
      if (kind[r] == "require") check(("," $6) ~ ("," value[r] "="), who " has no " value[r])
    }
    check($2 > 0 && $2 <= 255, who " has " $2 " registers")
    check($4 <= stack, who " has a stack of " $4 " bytes, " stack " are allowed")
    check($3 <= 49152 + 1024, who " has " $3 " bytes of static shared memory")
    key = base(name) "\t" $1
    if (!(key in instances)) order[++rows] = key
    instances[key]++
    narrowest(least, key, $2 + 0); widest(most, key, $2 + 0); widest(shared, key, $3 + 0); widest(stacks, key, $4 + 0)
    split($6, each, ",")
    for (k in each) { split(each[k], pair, "="); counts[key "\t" pair[1]] += pair[2] }
  }
  END {
    # A rule that matches nothing is a rule about a kernel that is gone.
    for (r = 1; r <= rules; r++) check(used[r], "no kernel is meant by the rule " kind[r] " " architecture[r] " " kernel[r])
    format = "%-56s %-6s %9s %9s %6s %7s %5s %6s %6s %8s %8s\n"
    printf format, "kernel", "arch", "instances", "registers", "stack", "shared", "HMMA", "LDSM", "LDGSTS", "LDG.128", "STG.128"
    print "| kernel | architecture | instances | registers | stack | static shared bytes | HMMA | LDSM | LDGSTS | LDG.128 | STG.128 |" >markdown
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |" >markdown
    for (k = 1; k <= rows; k++) {
      key = order[k]
      split(key, part, "\t")
      registers = least[key] == most[key] ? most[key] : least[key] "-" most[key]
      printf format, part[1], part[2], instances[key], registers, stacks[key], shared[key], counts[key "\tHMMA"] + 0, \
        counts[key "\tLDSM"] + 0, counts[key "\tLDGSTS"] + 0, counts[key "\tLDG.128"] + 0, counts[key "\tSTG.128"] + 0
      printf "| `%s` | %s | %d | %s | %d | %d | %d | %d | %d | %d | %d |\n", part[1], part[2], instances[key], registers, \
        stacks[key], shared[key], counts[key "\tHMMA"], counts[key "\tLDSM"], counts[key "\tLDGSTS"], counts[key "\tLDG.128"], \
        counts[key "\tSTG.128"] >markdown
    }
    printf "%d passed, %d failed\n", passed, failed
    exit failed > 0
  }' "$here/limits.txt" -
