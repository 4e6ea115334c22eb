# SPDX-License-Identifier: MIT
"""Plugin of pytest: the selection's cases of one suite, each with a line of what it gave."""

from __future__ import annotations

import os
from time import perf_counter

import pytest
import torch
from lines import Lines, chosen, usable
from prepare import prepare

SUITE, CHECKOUT, DEVICE = prepare()
LINES = Lines()


def cases_of(function):
    return [cases for cases in SUITE.cases if cases.function == function]


def names_of(argnames):
    return ",".join(name.strip() for name in argnames.split(",")) if isinstance(argnames, str) else ",".join(argnames)


def plain(value):
    """As the selection writes it: a dtype by its text."""
    return str(value) if isinstance(value, torch.dtype) else value


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Only values that some choice has: their files stand for a hundred thousand cases, of which making is slow."""
    cases, parametrize = cases_of(metafunc.function.__name__), metafunc.parametrize

    def fewer(argnames, argvalues, *rest, **words):
        kept, names = list(argvalues), names_of(argnames)
        if not cases:
            kept = kept[:1]
        elif all(names in choice.values for choice in cases):
            kept = [value for value in kept if any(plain(value) in choice.values[names] for choice in cases)]
        return parametrize(argnames, kept, *rest, **words)

    metafunc.parametrize = fewer


def fits(item, choice):
    given = item.callspec.params if hasattr(item, "callspec") else {}
    for names, values in choice.values.items():
        value = tuple(plain(given[name]) for name in names.split(","))
        if (value if "," in names else value[0]) not in values:
            return False
    return chosen(item.name, choice.every * LINES.fewer)


def pytest_collection_modifyitems(config, items):
    known = {cases.function for cases in SUITE.cases} | set(SUITE.left_out)
    new = sorted({item.function.__name__ for item in items} - known)
    for name in new:  # a later version of the suite: said, not passed over
        LINES.write(case=name, result="unknown", reason="the selection does not name this function")
    kept = [item for item in items if any(fits(item, choice) for choice in cases_of(item.function.__name__))]
    kept = [item for item in kept if LINES.ours(item.name)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    LINES.start(item.name)
    start = perf_counter()
    outcome = yield
    fault = outcome.excinfo[1] if outcome.excinfo else None
    took = perf_counter() - start
    if isinstance(fault, (pytest.skip.Exception, pytest.xfail.Exception)):
        LINES.write(case=item.name, result="skipped", reason=str(fault), seconds=round(took, 3))
    else:
        LINES.finish(item.name, fault, took)
    if not usable(DEVICE):
        os._exit(3)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    outcome = yield
    if outcome.excinfo:
        fault = outcome.excinfo[1]
        skipped = isinstance(fault, pytest.skip.Exception)
        LINES.write(case=item.name, result="skipped" if skipped else "failed", reason=str(fault)[:600])
