"""Rules of the source itself: who imports whom, and what stands nowhere."""
import ast
import importlib
import pathlib

import pytest

from symbols.registry import FAMILIES
from tests.conftest import ROOT

PACKAGES = 'common', 'recognition', 'symbols'
PROJECT = set(PACKAGES) | {'benchmarks', 'config', 'tests', 'train_parall'}
ALLOWED = {                                        # top-level name of a file -> what it may import of the project
    'common': {'common'},
    'symbols': {'symbols', 'common.mxnet_loader', 'common.errors'},
    'recognition': {'recognition', 'common'},
    'config': {'recognition.settings'},
    'train_parall': {'config', 'common', 'recognition', 'symbols'},
    'tests': PROJECT,
    'benchmarks': PROJECT,
    'setup': set(),
}
ONLY_IN = {'mxnet': 'common/mxnet_loader.py', 'horovod': 'recognition/collective.py'}
READS_ENVIRONMENT = {'train_parall.py', 'recognition/install_horovod.py', 'recognition/check_horovod.py',
                     'common/mxnet_loader.py'}                          # sets what MXNet reads at its start
LONGEST_FUNCTION = 60
FILES = sorted(path.relative_to(ROOT).as_posix() for folder in PACKAGES + ('tests', 'benchmarks')
               for path in (ROOT / folder).rglob('*.py')) + ['config.py', 'setup.py', 'train_parall.py']
PRODUCT = [path for path in FILES if not path.startswith(('tests/', 'benchmarks/'))]


def parse(path):
    return ast.parse((ROOT / path).read_text(encoding='utf-8'), path)


def imported(path):
    """Full names of the modules that a file imports, at its top or in a function."""
    found = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, '%s:%d imports relatively' % (path, node.lineno)
            found.update('%s.%s' % (node.module, alias.name) for alias in node.names)
    return found


def dotted(node):
    """'sys.path' of an attribute, 'print' of a name, else ''."""
    if isinstance(node, ast.Attribute):
        return '%s.%s' % (dotted(node.value), node.attr)
    return node.id if isinstance(node, ast.Name) else ''


def is_command_line(path):
    return "if __name__ == '__main__':" in (ROOT / path).read_text(encoding='utf-8')


def covers(allowed, name):
    return any(name == one or name.startswith(one + '.') for one in allowed)


@pytest.mark.parametrize('path', FILES)
def test_imports_go_one_way(path):
    allowed = ALLOWED[path.split('/')[0].replace('.py', '')]
    for name in imported(path):
        top = name.split('.')[0]
        assert top not in PROJECT or covers(allowed, name), '%s imports %s' % (path, name)
        assert ONLY_IN.get(top, path) == path, '%s imports %s, which only %s may' % (path, name, ONLY_IN[top])


@pytest.mark.parametrize('path', PRODUCT)
def test_nothing_forbidden(path):
    environment = 'os.environ', 'os.getenv', 'os.putenv'
    forbidden = {'eval', 'exec', '__import__', 'sys.path', 'pickle.load', 'pickle.loads'}
    forbidden |= set() if path in READS_ENVIRONMENT else set(environment)
    forbidden |= set() if is_command_line(path) else {'print', 'sys.argv'}
    for node in ast.walk(parse(path)):
        place = '%s:%s' % (path, getattr(node, 'lineno', ''))
        assert dotted(node) not in forbidden, '%s uses %s' % (place, dotted(node))
        assert not isinstance(node, ast.Global), '%s has a global statement' % place
        assert not (isinstance(node, ast.Assert) and node.msg is None), '%s asserts without a message' % place


@pytest.mark.parametrize('path', FILES)
def test_functions_are_short(path):
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, '%s: %s has %d lines' % (path, node.name, length)


def module_name(path):
    return path[:-len('.py')].replace('/', '.').replace('.__init__', '')


@pytest.mark.parametrize('path', [path for path in PRODUCT if path != 'setup.py'])
def test_every_module_can_be_imported(path):
    assert pathlib.Path(importlib.import_module(module_name(path)).__file__) == ROOT / path


def parents(name):
    """'a.b.c' -> 'a', 'a.b', 'a.b.c'"""
    parts = name.split('.')
    return ['.'.join(parts[:count]) for count in range(1, len(parts) + 1)]


def test_every_module_serves_a_test():
    """Every module of the product is reached from a test other than this one by imports."""
    modules = {module_name(path): path for path in FILES}
    reached = set()
    waiting = [name for name in modules if name.startswith('tests.') and name != __name__]
    while waiting:
        name = waiting.pop()
        if name in modules and name not in reached:
            reached.add(name)
            waiting += [parent for one in imported(modules[name]) for parent in parents(one)]
            waiting += ['symbols.%s' % family for family in FAMILIES if name == 'symbols.registry']
    assert {module_name(path) for path in PRODUCT} - reached == {'setup'}
