# SPDX-License-Identifier: MIT
"""What the scripts that measure peers share: problem lists, the timer of `attn bench`, records (docs/json.md)."""
import datetime
import json
import pathlib
import sys
import time

DTYPES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}
ROTATE_BYTES = 256 << 20
MOST_COPIES = 16


def problems(words):
    """(overlap or None, problem text): @NAME is bench/cases/NAME.txt; a word with blanks is a problem; anything else a file.
    A line `--overlap J` of a file holds for the lines after it. Those after `--lengths` are left out: peers are not
    given such sequences."""
    here = pathlib.Path(__file__).resolve().parent / "cases"
    for word in words:
        if " " in word:
            yield None, word
            continue
        path = pathlib.Path(word[1:]) if word.startswith("@") else pathlib.Path(word)
        path = path if path.exists() else here / f"{path}.txt"
        overlap, lengths = None, "0"
        for line in path.read_text().splitlines():
            line = line.split("#")[0].strip()
            if line.startswith("--overlap"):
                overlap = line.split()[1]
            elif line.startswith("--lengths"):
                lengths = line.split()[1]
            elif line and lengths == "0":
                yield overlap, line


def parse(line, extents, flags=()):
    """A problem text as a dict; None if it has a word outside extents and flags."""
    words = line.split()
    p = {"op": words[0], "b": 1, **dict.fromkeys(flags, False)}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if word in DTYPES:
            p["dtype"] = word
        elif word in flags:
            p[word] = True
        elif key in extents and value:
            p[key] = int(value)
        else:
            return None
    return p if "dtype" in p else None


def copies_of(traffic, cache):
    """How many copies of the tensors are taken in turn so that none stays in the L2 cache."""
    return 1 if cache != "rotate" else min(MOST_COPIES, ROTATE_BYTES // traffic + 2)


def quantile(x, q):
    place = q * (len(x) - 1)
    i = int(place)
    return x[i] + (place - i) * (x[i + 1] - x[i]) if i + 1 < len(x) else x[-1]


class Timer:
    """Times callables taken in turn, as `attn bench` does: batches of runs between two CUDA events."""

    def __init__(self, torch, calls, cache):
        self.calls, self.turn = calls, 0
        self.flush = torch.empty(ROTATE_BYTES, device="cuda", dtype=torch.int8) if cache == "flush" else None
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def batch(self, n):
        """Seconds per run on the device's and on the host's clock."""
        if self.flush is not None:
            self.flush.zero_()
        start = time.perf_counter()
        self.events[0].record()
        for _ in range(n):
            self.calls[self.turn % len(self.calls)]()
            self.turn += 1
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e-3 / n, (time.perf_counter() - start) / n

    def measure(self, runs, min_time):
        """(runs a batch, sorted seconds on the device's clock, sorted seconds on the host's)."""
        self.batch(3)
        _, host = self.batch(3)
        n = 1 if self.flush is not None else int(2e-3 / host) + 1 if host < 1e-3 else 2
        warm = 0.0
        while warm < 0.1:
            warm += self.batch(n)[1] * n
        samples, total = [], 0.0
        while len(samples) < runs or total < min_time:
            samples.append(self.batch(n))
            total += samples[-1][1] * n
        return n, sorted(s[0] for s in samples), sorted(s[1] for s in samples)


def arguments(parser, impls):
    """The options that these scripts have in common."""
    parser.add_argument("problems", nargs="+", metavar="PROBLEM|@NAME|FILE")
    parser.add_argument("--run-id", required=True, help="the id of the attn bench run beside it")
    parser.add_argument("--runs", type=int, default=30, help="timed samples, at least (default 30)")
    parser.add_argument("--min-time", type=float, default=0.2, help="and seconds of timed work (default 0.2)")
    parser.add_argument("--cache", choices=("rotate", "flush", "warm"), default="rotate")
    parser.add_argument("--only", default=",".join(impls), help="implementations, by comma")


def load(torch, args, loaders):
    """{implementation: what its loader returns}, of those that --only names and that load. loaders: {implementation: (loader,
    whether the command line has what it needs)}."""
    found = {}
    for impl, (loader, is_given) in loaders.items():
        if impl in args.only.split(",") and is_given:
            try:
                found[impl] = loader(torch, args)
            except (ImportError, OSError, RuntimeError) as error:
                complain(f"{impl} does not load:", str(error)[:300])
    return found


def print_measured(torch, args, name, check, prepare, work, **more):
    """One record of a problem and implementation, `name`: its time, or why there is none. check() is how wrong the results are,
    of their root mean square; prepare() makes the calls, each with tensors of its own."""
    try:
        wrong = check() if args.check else 0
        if wrong > 0.2:
            raise RuntimeError(f"wrong by {wrong:.3f} of the root mean square")
        print_record(torch, args, *name, Timer(torch, prepare(), args.cache).measure(args.runs, args.min_time), work, **more)
    except Exception as error:  # whatever the package raises
        print_record(torch, args, *name, note=(str(error).splitlines() or [repr(error)])[0][:160], **more)
    torch.cuda.empty_cache()


def print_record(torch, args, problem, impl, kernel, measured=None, work=None, note=None, **more):
    """One line of JSON. measured is what Timer.measure returns, work its FLOPs and bytes; without them the note says why."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = {"run": args.run_id, "date": date, "commit": None, "device": torch.cuda.get_device_name(),
              "driver": f"CUDA {torch.version.cuda}", "problem": problem, "impl": impl, "kernel": kernel, "measure": "execution"}
    if measured is None:
        record.update(median_us=None, note=note)
    else:
        state = {"rotate": "rotated", "flush": "flushed", "warm": "warm"}[args.cache]
        n, device, host = measured
        median = quantile(device, 0.5)
        record.update(median_us=round(median * 1e6, 3), p10_us=round(quantile(device, 0.1) * 1e6, 3),
                      p90_us=round(quantile(device, 0.9) * 1e6, 3), n=len(device), batch=n, clock="device",
                      host_us=round(quantile(host, 0.5) * 1e6, 3), cache=state,
                      tflops=round(work[0] / median / 1e12, 4), gbps=round(work[1] / median / 1e9, 3),
                      limit_share=None, note=f"inputs {state}, CUDA events around batches of {n}")
    print(json.dumps({**record, **more}), flush=True)


def complain(*words):
    print(*words, file=sys.stderr, flush=True)
