"""What the one importer of MXNet says about an environment that cannot work: one line with the remedy."""
import os
import re
import subprocess
import sys
import textwrap

import pytest

from common.version import VERSION
from tests.conftest import ROOT


def load_mxnet(folder, before=''):
    """Import common.mxnet_loader in a fresh Python that sees the modules of `folder` first -> what it printed."""
    script = textwrap.dedent(before) + textwrap.dedent('''
        from common.errors import UserError
        try:
            from common.mxnet_loader import mx
        except UserError as error:
            print('error:', error)
        else:
            print('loaded', mx.__version__)
    ''')
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    result = subprocess.run([sys.executable, '-c', script], env=environment, capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def stand_in(folder, name, text):
    package = folder / name
    package.mkdir()
    (package / '__init__.py').write_text(textwrap.dedent(text))


def test_new_numpy(tmp_path):
    stand_in(tmp_path, 'numpy', '__version__ = "2.1.0"')
    assert load_mxnet(tmp_path) == 'error: NumPy 2.1.0 is too new for MXNet 1.9.1: pip install "numpy<2"'


def test_no_distutils(tmp_path):
    said = load_mxnet(tmp_path, 'import sys; sys.modules["distutils"] = None')
    assert said == 'error: MXNet needs distutils, which this Python lacks: pip install "setuptools<80"'


def test_no_mxnet(tmp_path):
    said = load_mxnet(tmp_path, 'import sys; sys.modules["mxnet"] = None')
    assert said.startswith('error: MXNet is not installed: pip install mxnet==1.9.1')


@pytest.mark.parametrize('failure, said', [
    ('import requests_of_mxnet', 'needs the module requests_of_mxnet'),
    ('raise OSError("libcudart.so.11.0: cannot open shared object file")', 'does not start (libcudart.so.11.0'),
    ('raise RuntimeError("Cannot find the MXNet library")', 'does not start (Cannot find'),
])
def test_broken_mxnet(tmp_path, failure, said):
    stand_in(tmp_path, 'mxnet', failure)
    answer = load_mxnet(tmp_path)
    assert said in answer and 'pip install' in answer and '\n' not in answer


def test_numpy_without_bool_is_mended(tmp_path):
    stand_in(tmp_path, 'mxnet', 'import numpy; numpy.bool(1); __version__ = "stand-in"')
    assert load_mxnet(tmp_path) == 'loaded stand-in'


def test_this_environment_works(tmp_path):
    assert load_mxnet(tmp_path) == 'loaded 1.9.1'


# Set-up: what README, .ci/run and setup.py say

def readme_commands():
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    return [line for line in text.splitlines() if line.startswith('python3 -m venv')]


def test_readme_sets_up_with_two_commands():
    train, test = readme_commands()
    assert "pip install -e '.[cpu]'" in train and 'train_parall.py --dataset demo' in train
    assert "pip install -e '.[cpu,test]'" in test and test.endswith('-m pytest')


def test_ci_runs_the_command_of_the_readme():
    extraction = [line for line in (ROOT / '.ci' / 'run').read_text().splitlines() if 'README.md)' in line]
    found = subprocess.run(['bash', '-c', extraction[0] + '; echo "$set_up_and_test"'], cwd=str(ROOT),
                           capture_output=True, text=True, check=True)
    assert found.stdout.strip() == readme_commands()[1]


def test_readme_names_files_that_are_there():
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    named = re.findall(r'`((?:common|recognition|symbols|docs|tests)/[\w./]*|\w+\.py)`', text)
    assert len(named) > 15 and all((ROOT / path).exists() for path in named), named


def test_the_version_that_is_saved_is_that_of_the_package():
    assert "version='%s'" % VERSION in (ROOT / 'setup.py').read_text()
