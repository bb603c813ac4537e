#!/usr/bin/env bash
# Prints the Pythons of this machine from 3.11 up, oldest first, one of each minor version: its version and its path.
set -euo pipefail
for candidate in python3 python3.{11..19} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
  "$candidate" -c 'import sys, venv
if sys.version_info >= (3, 11) and sys.version_info.releaselevel == "final":
    print(f"{sys.version_info.major}.{sys.version_info.minor} {sys.version_info.micro} {sys.executable}")' 2>/dev/null || true
done | sort --version-sort --reverse | sort --version-sort --unique --key 1,1 | cut -d ' ' -f 1,3
