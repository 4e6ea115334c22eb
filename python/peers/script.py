# SPDX-License-Identifier: MIT
"""A test file that is a program: a list of cases under `if __name__ == "__main__"`, and a function that runs one of them."""

from __future__ import annotations

import ast
import collections
import contextlib
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


def main():
    suite, checkout, device = prepare()
    lines, (choice,) = Lines(), suite.cases
    path = os.path.join(checkout, suite.file)
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    program = [node for node in tree.body if is_main(node)]
    tree.body = [node for node in tree.body if not is_main(node)]
    module = sys.modules["peer"] = types.ModuleType("peer")
    exec(compile(tree, path, "exec"), module.__dict__)
    run_one, seen = getattr(module, choice.function), collections.Counter()

    def run(case):
        name = repr(case)
        seen[name] += 1
        if seen[name] > 1:  # the same case again, with other numbers
            name = f"{name} #{seen[name]}"
        if any(getattr(case, field) not in values for field, values in choice.values.items()):
            return Passed()
        if not chosen(name, choice.every * lines.fewer) or not lines.ours(name):
            return Passed()
        for field, value in suite.changes.items():
            setattr(case, field, value)
        lines.start(name)
        start, said, fault, right = perf_counter(), io.StringIO(), None, True
        try:
            with contextlib.redirect_stdout(said):
                found = run_one(case)
            right = getattr(found, "is_correct", found)
        except Exception as raised:  # noqa: BLE001 - a line of the record, whatever it is
            fault = raised
        if fault is None and right is not None and not right:
            fault = AssertionError(said.getvalue()[-500:])
        lines.finish(name, fault, perf_counter() - start)
        if not usable(device):
            os._exit(3)
        return Passed()

    setattr(module, choice.function, run)
    sys.argv = [path]
    for node in program:
        exec(compile(ast.Module(node.body, []), path, "exec"), module.__dict__)


main()
