#!/usr/bin/env bash
# Whether the CUDA tests notice mistakes: each seeded bug of list.txt is edited into a copy of a kernel, which is compiled and
# linked in place of the right one, and the tests of its family must fail in at least one flavour of the emulator.
#
#   tests/cuda/mutations/run.sh BUILD [WORD]     BUILD: where test_cuda_emulated, _asan and _race are built; WORD: bugs so named
#
# Prints a table; the last line is `N passed, N failed`.
set -uo pipefail
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
build=$(cd "$1" && pwd)
word=${2:-}
list=$source_dir/tests/cuda/mutations/list.txt
work=$build/mutations
rm -rf "$work"
mkdir -p "$work"

program() { case $1 in plain) echo test_cuda_emulated ;; *) echo "test_cuda_$1" ;; esac; }
kernels() { case $1 in plain) echo refrain_emulated_kernels ;; *) echo "refrain_emulated_kernels_$1" ;; esac; }

# Compiles and links one flavour with the edited file in front of the include path.
build_mutant() {  # DIR UNIT FLAVOUR
  local dir=$1 unit=$2 flavour=$3 object command
  object=kernels/emulator/CMakeFiles/$(kernels "$flavour").dir/__/$unit.o
  command=$(ninja -C "$build" -t commands "$object" | tail -n 1)
  # The .cu file itself when that is what was edited.
  local from=$source_dir/kernels/$unit to=$dir/include/refrain/kernels/$unit
  [ -f "$to" ] || to=$from
  command=${command/ -c $from/ -c $to}
  command=${command//$object/$dir/$flavour.o}
  command=${command/ -I/ -I$dir/include -I}
  (cd "$build" && eval "$command") || return 1
  command=$(ninja -C "$build" -t commands "tests/cuda/$(program "$flavour")" | tail -n 1)
  command=${command/ $object / $dir/$flavour.o }
  command=${command/ -o tests\/cuda\/$(program "$flavour")/ -o $dir/$flavour}
  (cd "$build" && eval "$command")
}

# caught, or missed.
verdict() {  # DIR FLAVOUR ORDER TESTS
  if REFRAIN_EMULATOR_ORDER=$3 REFRAIN_EMULATOR_TIMEOUT=20 timeout 120 "$1/$2" "$4" --abort >"$1/$2.$3.log" 2>&1; then
    if grep -q '^All tests passed' "$1/$2.$3.log" && ! grep -q '^No test cases matched' "$1/$2.$3.log"; then echo missed; else echo ran-nothing; fi
  else
    echo caught
  fi
}

run_one() {  # NUMBER LINE
  local number=$1 line=$2 name file unit flavours tests edit
  IFS='|' read -r name file unit flavours tests edit <<<"$line"
  name=$(sed 's/ *$//' <<<"$name"); file=${file// /}; unit=${unit// /}
  tests=$(sed 's/^ *//; s/ *$//' <<<"$tests"); edit=$(sed 's/^ *//' <<<"$edit")
  local dir=$work/$number copy
  copy=$dir/include/refrain/kernels/$file
  mkdir -p "$(dirname "$copy")"
  sed "$edit" "$source_dir/kernels/$file" >"$copy"
  local forward=- reverse=- random=- asan=- race=-
  local problem=""
  cmp -s "$copy" "$source_dir/kernels/$file" && problem="the edit changes nothing"
  for flavour in $flavours; do
    [ -z "$problem" ] || break
    build_mutant "$dir" "$unit" "$flavour" >"$dir/$flavour.build.log" 2>&1 || { problem="$flavour does not build"; break; }
    case $flavour in
      plain)
        forward=$(verdict "$dir" plain forward "$tests")
        reverse=$(verdict "$dir" plain reverse "$tests")
        random=$(verdict "$dir" plain random "$tests") ;;
      asan) asan=$(verdict "$dir" asan forward "$tests") ;;
      race) race=$(verdict "$dir" race forward "$tests") ;;
    esac
  done
  local all="$forward $reverse $random $asan $race" result=ok
  [[ $all == *caught* ]] || result=FAILED
  [[ $all != *ran-nothing* ]] || problem="no test has that name"
  [ -z "$problem" ] || result="FAILED ($problem)"
  printf '%-68s %-8s %-8s %-8s %-8s %-8s %s\n' "$name" "$forward" "$reverse" "$random" "$asan" "$race" "$result" >"$work/$number.row"
  cat "$work/$number.row"
  rm -f "$dir"/plain "$dir"/asan "$dir"/race "$dir"/*.o
}
export -f program kernels build_mutant verdict run_one
export source_dir build work

printf '%-68s %-8s %-8s %-8s %-8s %-8s\n' bug forward reverse random asan race
grep -v '^#' "$list" | grep -v '^ *$' | grep -e "$word" | awk '{printf "%d\t%s%c", NR, $0, 0}' |
  xargs -0 -P "$(nproc)" -I{} bash -c 'row=$1; run_one "${row%%	*}" "${row#*	}"' _ {}
total=$(cat "$work"/*.row 2>/dev/null | wc -l)
failed=$(cat "$work"/*.row 2>/dev/null | grep -c FAILED || true)
echo "$((total - failed)) passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$total" -gt 0 ]
