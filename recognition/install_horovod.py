"""Build Horovod for the installed MXNet and see that it works:  python -m recognition.install_horovod

Horovod is compiled from its source against MXNet's headers, which takes g++, make and CMake. Without flags it speaks
TCP on the host (Gloo), and NCCL too where MXNet is the GPU build and its CUDA and NCCL are found.
"""
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from common.command import run_tool, tool_parser
from common.cuda_libraries import WHEEL
from common.errors import UserError

VERSION = '0.28.1'
NEEDED = ['setuptools<70', 'wheel', 'cffi', 'cloudpickle', 'psutil', 'pyyaml', 'packaging', 'cmake>=3.18,<4']
OTHERS = 'PYTORCH', 'TENSORFLOW'                # frameworks that Horovod is not built for
SECONDS_TO_CHECK = 120
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# MXNet is older than NumPy 1.24, so whoever imports it must do this first
MEND = '''import numpy
if 'bool' not in numpy.__dict__:
    numpy.bool = bool
'''
# Run by every Python of the build
START = MEND + '''from common.cuda_libraries import load_cuda_libraries
load_cuda_libraries()
'''
# What a build log says -> what it means; the first that is found is told
CAUSES = (
    ("No module named 'mxnet'", "MXNet is not installed here: pip install '.[cpu]' or '.[gpu]' first"),
    ('Could not find compiler', 'a C++ compiler is needed: apt-get install g++ make'),
    ('CMAKE_CXX_COMPILER', 'a C++ compiler is needed: apt-get install g++ make'),
    ('No CMAKE_CXX', 'a C++ compiler is needed: apt-get install g++ make'),
    ('Could NOT find NCCL', 'NCCL is not found: install libnccl-dev, set HOROVOD_NCCL_HOME to its folder, or --no-gpu'),
    ('Could NOT find CUDA', 'the CUDA toolkit is not found: name its folder in HOROVOD_CUDA_HOME, or give --no-gpu'),
    ('Could NOT find MPI', 'MPI is not found: install libopenmpi-dev, or leave --mpi away'),
    ('Could not find MPI', 'MPI is not found: install libopenmpi-dev, or leave --mpi away'),
    ('Could NOT find Mxnet', 'the build cannot import MXNet: see whether python -c "import common.mxnet_loader" works'),
    ('Killed', 'the compiler was killed, mostly for want of memory: give --jobs 1'),
    ('No space left', 'the disk is full: free some, or set TMPDIR to a folder on another'),
    ('Could not fetch', 'the package index cannot be reached'),
    ('No matching distribution', 'the package index cannot be reached, or does not have it'),
)


def make_parser():
    parser = tool_parser('install_horovod', 'Build Horovod %s for the installed MXNet and see that it works.' % VERSION,
                         'python -m recognition.install_horovod')
    parser.add_argument('--jobs', type=int, default=os.cpu_count() or 1, metavar='N',
                        help='compilers at a time (default: one per core)')
    parser.add_argument('--mpi', action='store_true', help='also for mpirun (needs MPI and its headers)')
    parser.add_argument('--no-gpu', action='store_true', help='without NCCL: gradients go over the host')
    parser.add_argument('--force', action='store_true', help='build it even if it is there and works')
    return parser


def mxnet_distribution():
    """'mxnet' or 'mxnet-cu112'. UserError if there is none."""
    for name in (WHEEL, 'mxnet'):
        try:
            importlib.metadata.version(name)
            return name
        except importlib.metadata.PackageNotFoundError:
            pass
    raise UserError("MXNet is not installed here: pip install '.[cpu]' or '.[gpu]' first")


def flags(distribution, mpi, no_gpu):
    """Environment that says what Horovod is built with."""
    chosen = {'HOROVOD_WITH_MXNET': '1', 'HOROVOD_WITH_GLOO': '1'}
    chosen['HOROVOD_WITH_MPI' if mpi else 'HOROVOD_WITHOUT_MPI'] = '1'
    chosen.update({'HOROVOD_WITHOUT_%s' % name: '1' for name in OTHERS})
    if distribution == WHEEL and not no_gpu:
        chosen['HOROVOD_GPU_OPERATIONS'] = 'NCCL'
    return chosen


def build_environment(environ, chosen, jobs, folder):
    """environ and what the build needs; folder holds START as sitecustomize.py."""
    bin_folder = os.path.dirname(os.path.abspath(sys.executable))               # there pip puts cmake
    paths = [folder, ROOT] + ([environ['PYTHONPATH']] if environ.get('PYTHONPATH') else [])
    return dict(environ, PATH=bin_folder + os.pathsep + environ.get('PATH', os.defpath), MAKEFLAGS='-j%d' % jobs,
                PYTHONPATH=os.pathsep.join(paths), CMAKE_POLICY_VERSION_MINIMUM='3.5', **chosen)


def explain(text):
    """Output of a command that failed -> the reason in words."""
    for sign, meaning in CAUSES:
        if sign in text:
            return meaning
    errors = [line.strip() for line in text.splitlines() if 'error' in line.lower()]
    return errors[0] if errors else 'its last words: %s' % ' '.join(text.split()[-30:])


def call(command, what, environ, path_log):
    """Run a command, its output to the end of a file. UserError with the reason if it fails."""
    with open(path_log, 'a+', encoding='utf-8', errors='replace') as stream:
        start = stream.seek(0, os.SEEK_END)
        code = subprocess.run(command, env=environ, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
        stream.seek(start)
        output = stream.read()
    if code:
        raise UserError('%s failed: %s; the whole output is in %s' % (what, explain(output), path_log))


def build(args, environ):
    """Install what the build needs, then Horovod."""
    chosen = flags(mxnet_distribution(), args.mpi, args.no_gpu)
    pip = [sys.executable, '-m', 'pip', 'install']
    path_log = os.path.join(tempfile.gettempdir(), 'install_horovod-%d.log' % os.getpid())
    print('building Horovod %s (%s); its output goes to %s' % (VERSION, ' '.join(sorted(chosen)), path_log), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'sitecustomize.py'), 'w', encoding='utf-8') as stream:
            stream.write(START)
        call(pip + NEEDED, 'installing what the build needs', environ, path_log)
        call(pip + ['--verbose', '--no-build-isolation', '--no-cache-dir', '--force-reinstall', '--no-deps',
                    'horovod==%s' % VERSION], 'building Horovod',
             build_environment(environ, chosen, args.jobs, folder), path_log)
    os.remove(path_log)


def mend():
    """Let the installed horovod.mxnet be imported by programs that do not know of MEND, as horovodrun is."""
    path = pathlib.Path(importlib.util.find_spec('horovod').origin).parent / 'mxnet' / '__init__.py'
    text = path.read_text(encoding='utf-8')
    if not text.startswith(MEND):
        path.write_text(MEND + text, encoding='utf-8')


def check(environ, seconds=SECONDS_TO_CHECK):
    """Two processes try every operation. UserError with the reason if one does not work.

    environ: None for that of this process.
    """
    command = [sys.executable, '-m', 'horovod.runner.launch', '--gloo', '-np', '2', '-H', 'localhost:2',
               sys.executable, '-m', 'recognition.check_horovod']
    try:
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=seconds, encoding='utf-8', errors='replace', cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise UserError('Horovod is installed, but two processes did not find each other in %d s: see '
                        'HOROVOD_GLOO_IFACE in docs/distributed.md' % seconds) from None
    if done.returncode:
        raise UserError('Horovod does not work: %s' % explain_check(done.stdout))


def explain_check(text):
    """Output of a failed check -> its own line of error, or what else it says."""
    errors = [line.partition('error: ')[2] for line in text.splitlines() if 'error: ' in line]
    return errors[0] if errors else explain(text)


def run(args):
    if importlib.util.find_spec('horovod') and not args.force:
        try:
            mend()
            check(dict(os.environ))
        except UserError as error:
            print('%s; building it again' % error, flush=True)
        else:
            print('Horovod is there and works: nothing to do')
            return
    if not shutil.which('g++') and not os.environ.get('CXX'):
        raise UserError('a C++ compiler is needed: apt-get install g++ make')
    build(args, dict(os.environ))
    mend()
    check(dict(os.environ))
    print('Horovod %s works with this MXNet: horovodrun -np 2 sh -c "python train_parall.py ..."' % VERSION)


def main(argv=None):
    """Run the command line; returns the exit code."""
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
