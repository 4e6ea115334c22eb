# SPDX-License-Identifier: MIT
"""What a case leaves: a line of JSON with its name, result and reason. Which cases are chosen, and which share is ours."""

from __future__ import annotations

import json
import os
import zlib


def chosen(name, every):
    """One of `every` names, by a hash that is the same on every machine."""
    return zlib.crc32(name.encode()) % max(1, every) == 0


class Lines:
    """Lines of one process, appended to a file, and the cases that earlier processes have finished."""

    def __init__(self):
        self.path = os.environ["PEERS_LINES"]
        self.share, self.shares = map(int, os.environ["PEERS_SHARE"].split("/"))
        self.fewer = int(os.environ["PEERS_FEWER"])
        self.finished, self.count = set(), 0
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.finished = {line["case"] for line in map(json.loads, file)}

    def ours(self, name):
        """Is a chosen case this process's, and not yet run?"""
        self.count += 1
        return self.count % self.shares == self.share and name not in self.finished

    def write(self, **line):
        """Append one line at once: the process may end with the next case."""
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps(line), file=file, flush=True)

    def start(self, name):
        """A case that ends the process, or outlasts its time, stands as failed."""
        self.write(case=name, result="started")

    def finish(self, name, fault, seconds):
        """passed, refused with the feature's name, or failed with the last line of what was raised."""
        from libattn import UnsupportedError

        line = {"case": name, "result": "passed", "seconds": round(seconds, 3)}
        if isinstance(fault, UnsupportedError):
            line.update(result="refused", feature=fault.argument, reason=str(fault)[:300])
        elif fault is not None:
            line.update(result="failed", reason=f"{type(fault).__name__}: {fault}"[:600])
        self.write(**line)


def usable(device):
    """After a fault of a GPU its process can do no more. Of the memory that it keeps for the next case it leaves the other
    processes theirs.
    """
    import torch

    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory / 4 / int(os.environ["PEERS_JOBS"]):
        torch.cuda.empty_cache()
    return True
