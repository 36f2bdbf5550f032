#!/bin/bash
# What run.sh makes of programs that pass, fail, and fail under a sanitizer. Everything that it runs is played here.
set -u
run=$(cd "$(dirname "$0")" && pwd)/run.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_run.sh: $1"; cat "$work/out"; exit 1; }
has() { grep -qF -- "$1" "$work/log" || fail "the log lacks: $1"; }
lacks() { ! grep -qF -- "$1" "$work/log" || fail "the log has: $1"; }

mkdir "$work/dir" "$work/bin"
echo "0123456789ab" >"$work/dir/commit"

# mlad-tests: two suites, of which the second fails.
cat >"$work/dir/mlad-tests" <<'E'
#!/bin/bash
[ "$1" != --list ] || { echo backend_good; echo backend_bad; exit 0; }
result=success
[ "$1" = backend_good ] || { result=failure; echo "why $1 fails"; }
cat >"$CK_XML_LOG_FILE_NAME" <<X
<title>$1</title>
<test result="$result">
<id>a</id>
<iteration>0</iteration>
<duration>0.5</duration>
<message>7 &lt; 8</message>
</test>
X
[ "$1" = backend_good ]
E
cat >"$work/dir/gpu_kernels" <<'E'
#!/bin/bash
[ "${1:-}" != --variants ] || printf '%s\n' sm90 sm90-96 sm90-64 sm90-48 sm90-32 generic-sm_90a generic-compute_80
E

# gpu_race: kernels of all kinds, and one, e, that is ordered and reads wrong values.
cat >"$work/dir/gpu_race" <<'E'
#!/bin/bash
case ${1:-} in
  --list) printf '%s\n' "a either" "b clean" "c reported" "d either" "e either" ;;
  e) echo "e: 5 wrong values" ;;
  *) echo "${1:-a}: 0 wrong values" ;;
esac
E

# compute-sanitizer: racecheck finds a hazard of a and b of gpu_race, does not answer for d, and finds 300 hazards behind
# a line of other programs; the others find nothing.
cat >"$work/bin/compute-sanitizer" <<'E'
#!/bin/bash
[ "$1" != --version ] || { echo "Version 1.2.3"; exit; }
echo "========= COMPUTE-SANITIZER"
[ "$2" = racecheck ] || exit 0
if [[ $* = */gpu_race\ ? ]]; then
  hazards=0
  case ${*: -1} in
    a | b) hazards=1; echo "========= Error: Potential WAR hazard" ;;
    d) exit 1 ;;
  esac
  "${@: -2}"
  echo "========= RACECHECK SUMMARY: $hazards hazards displayed"
  exit
fi
echo "line of the program"
for i in $(seq 300); do echo "========= Error: hazard $i ($*)"; done
head -c 30000 /dev/zero | tr '\0' x
exit 9
E
chmod +x "$work/dir/mlad-tests" "$work/dir/gpu_kernels" "$work/dir/gpu_race" "$work/bin/compute-sanitizer"

go() { MLA_CUDA_DRIVER=none PATH=$work/bin:$PATH "$run" "$work/dir" --log "$work/log" "$@" >"$work/out" 2>&1; }

go --only backend
[ $? -eq 1 ] || fail "a failure is not told by the exit code"
has "ok      0.500 s  backend/backend_good/a"
has "FAIL    0.500 s  backend/backend_bad/a: 7 < 8"
has "why backend_bad fails"
lacks "why backend_good fails"
lacks "---- compute-sanitizer"
has "1 passed, 1 failed, 0 skipped"

MLA_SANITIZER_OPTIONS="--print-limit 7" go --only sanitizer
[ $? -eq 1 ] || fail "hazards are not told by the exit code"
has "18 passed, 6 failed, 0 skipped"
has "sanitizer racecheck sm90: exit code 9"
has "sanitizer racecheck sm90-64: exit code 9"
has "---- compute-sanitizer, 100 of 301 lines"
has "Error: hazard 1 (--tool racecheck"
has "Error: hazard 99 ("
lacks "Error: hazard 100 ("
has "--racecheck-report all --print-limit 7"
[ "$(grep -c '^========= COMPUTE-SANITIZER' "$work/log")" -eq 6 ] || fail "a tool that found nothing is in the log"
[ "$(wc -c <"$work/log")" -lt 240000 ] || fail "the log holds too much of a program's output"

go --only race
[ $? -eq 1 ] || fail "a racecheck that errs is not told by the exit code"
has "compute-sanitizer: Version 1.2.3"
has "plain: a: 0 wrong values"
has "racecheck of a                expected either,   found reported: RAW 0, WAR 1, WAW 0; 0 wrong values"
has "racecheck of b                expected clean,    found reported: RAW 0, WAR 1, WAW 0; 0 wrong values"
has "racecheck of c                expected reported, found clean:    RAW 0, WAR 0, WAW 0; 0 wrong values"
has "racecheck of d                expected either,   found no answer: RAW 0, WAR 0, WAW 0; no values"
has "racecheck of e                expected either,   found clean:    RAW 0, WAR 0, WAW 0; 5 wrong values"
has "race/a"
has "2 passed, 4 failed, 0 skipped"
