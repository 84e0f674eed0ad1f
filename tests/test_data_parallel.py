"""Work in several processes: they end with the one that gave it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

SCRIPT = """
from wavessm_lab.generate.parallel import in_order

said = "(__import__('time').sleep(1), __import__('os').getpid())[1]"
for answer in in_order(eval, [said, said, *["__import__('time').sleep(600)"] * 4], 2):
    print(answer, flush=True)
"""


def alive(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_working_processes_end_with_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    workers = {int(parent.stdout.readline()) for _ in range(2)}
    try:
        assert all(map(alive, workers))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while any(map(alive, workers)):
            assert time.monotonic() < deadline, "still at work for nobody, and in the way of the next run"
            time.sleep(0.05)
    finally:
        parent.stdout.close()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
