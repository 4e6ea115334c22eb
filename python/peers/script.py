# SPDX-License-Identifier: MIT
"""Test files that are no pytest files: a program with a list of cases under `if __name__ == "__main__"`, or functions to call."""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib
import io
import os
import sys
import types
from time import perf_counter

from lines import Lines, chosen, usable
from prepare import prepare


class Passed:
    """Result of a case that is not run: right, with figures of 0."""

    def __getattr__(self, name):
        return 0

    is_correct = True


def is_main(node):
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


class Runner:
    """Runs chosen cases, a line for each."""

    def __init__(self, suite, device):
        self.suite, self.device, self.lines, self.seen = suite, device, Lines(), collections.Counter()

    def run(self, name, every, call):
        """A case, if it is chosen and this process's."""
        self.seen[name] += 1
        if self.seen[name] > 1:  # the same case again, with other numbers
            name = f"{name} #{self.seen[name]}"
        if not chosen(name, every * self.lines.fewer) or not self.lines.ours(name):
            return
        self.lines.start(name)
        start, said, fault, right = perf_counter(), io.StringIO(), None, True
        try:
            with contextlib.redirect_stdout(said):
                found = call()
            right = getattr(found, "is_correct", found)
        except Exception as raised:  # noqa: BLE001 - a line of the record, whatever it is
            fault = raised
        if fault is None and right is not None and not right:
            fault = AssertionError(said.getvalue()[-500:])
        self.lines.finish(name, fault, perf_counter() - start)
        if not usable(self.device):
            os._exit(3)


def run_calls(suite, runner):
    """Functions of the checkout's modules, with the arguments of the selection."""
    for cases in suite.cases:
        module, _, function = cases.function.rpartition(".")
        call = getattr(importlib.import_module(module), function)
        for words in cases.calls:
            name = f"{function}({', '.join(f'{key}={value}' for key, value in words.items())})"
            runner.run(name, cases.every, lambda words=words: call(**words))


def run_program(suite, checkout, runner):
    """The list of cases under __main__, with a function of ours in place of the one that runs a case."""
    (choice,) = suite.cases
    path = os.path.join(checkout, suite.file)
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    program = [node for node in tree.body if is_main(node)]
    tree.body = [node for node in tree.body if not is_main(node)]
    module = sys.modules["peer"] = types.ModuleType("peer")
    exec(compile(tree, path, "exec"), module.__dict__)
    run_one = getattr(module, choice.function)

    def run(case):
        name = repr(case)

        def call():
            for field, value in suite.changes.items():
                setattr(case, field, value)
            return run_one(case)

        if all(getattr(case, field) in values for field, values in choice.values.items()):
            runner.run(name, choice.every, call)
        return Passed()

    setattr(module, choice.function, run)
    sys.argv = [path]
    for node in program:
        exec(compile(ast.Module(node.body, []), path, "exec"), module.__dict__)


def main():
    suite, checkout, device = prepare()
    runner = Runner(suite, device)
    if suite.form == "calls":
        run_calls(suite, runner)
    else:
        run_program(suite, checkout, runner)


main()
