"""For command lines that are run by their path, as in `python common/rec2shufrec.py`, from a checkout.

Python then looks for modules in common/ itself, so it finds this file, but not the package `common`. Importing it
makes the package known under its name. It is not needed where the project is installed or run with -m.
"""
import importlib.util
import os
import sys


def make_known(folder):
    """Make a folder with an __init__.py importable as the package of its name."""
    name = os.path.basename(folder)
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, '__init__.py'), submodule_search_locations=[folder])
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)


if importlib.util.find_spec('common') is None:
    make_known(os.path.dirname(os.path.abspath(__file__)))
