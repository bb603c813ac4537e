#!/usr/bin/env bash
# Builds the examples in other languages and runs their plugins and callers, those whose tools are installed.
set -euo pipefail
cd "$(dirname "$0")/.."

ran=() skipped=()

# language NAME VERSION-COMMAND PROGRAM...: the programs are all that it needs.
language() {
  local name=$1 version=$2 program
  shift 2
  for program in "$@"; do
    if ! command -v "$program" >/dev/null; then
      skipped+=("$name: no $program")
      return
    fi
  done
  ran+=("$name: $($version 2>&1 | head -n 1)")
}

language go "go version" go
language typescript "node --version" node npm
language java "java --version" java mvn
language rust "cargo --version" cargo

say() {
  [ ${#ran[@]} = 0 ] || printf 'runs     %s\n' "${ran[@]}"
  [ ${#skipped[@]} = 0 ] || printf 'SKIPPED  %s\n' "${skipped[@]}"
}

say
# 40 minutes: beside other steps, with nothing downloaded before, two busy cores take 23.
PYTEST_TIMEOUT=2400 timeout --foreground --signal=INT 2400 .ci/pytest.sh .venv/bin -m interop tests/languages
say
