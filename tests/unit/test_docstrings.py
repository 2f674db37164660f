"""Every example in a docstring is true: one test a module that has some."""

import doctest
import importlib
import pkgutil

import pytest

import walproof


@pytest.mark.parametrize(
    "name", [m.name for m in pkgutil.walk_packages(walproof.__path__, "walproof.") if "__main__" not in m.name]
)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
