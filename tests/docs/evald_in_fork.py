"""Stands for `evald` in the blocks of a page: has the fork server run the command with this process's arguments,
environment, directory and standard streams, and ends with its exit code. EVALD_TEST_FORKS: the server's address;
EVALD_TEST_EVALD: the command.
"""

import json
import os
import socket
import sys

request = {
    "arguments": [os.environ["EVALD_TEST_EVALD"], *sys.argv[1:]],
    "environment": dict(os.environ),
    "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than all the rest
    "descriptors": None,
}
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["EVALD_TEST_FORKS"])
    socket.send_fds(server, [b"\n"], range(3))
    server.sendall(json.dumps(request).encode() + b"\n")
    _pid, code = server.makefile()
    sys.exit(int(code))
