"""Mutants of valid files and command lines: each must end in success or in a clean error.

    python -m tests.fuzz rec --mutants 20000 --seed 0

Mutants run in forked children, so that an abort in C++ is a finding and not the end. A finding is printed with the
seed that brings it back: python -m tests.fuzz rec --mutants 1 --seed SEED.
"""
import argparse
import contextlib
import io
import logging
import mmap
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings

from common.errors import UserError
from tests.fuzz_targets import TARGETS

BATCH = 200                          # mutants per child
PATIENCE = 30                        # seconds for one mutant
MEMORY = 500 << 20                   # bytes above twice the size of the files
NUMBERS = (0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 65500, 1 << 24, (1 << 29) - 1, 1 << 29, 0x7fffffff, 1 << 31,
           0xffffffff, 0xced7230a, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TEXTS = (b'\0', b'\n', b'\t', b'../outside/x', b'/outside', b'-1', b'99999999999999999999', b'nan', b'{', b'[', b'null',
         b'\xff\xfe', b'1e999', b'True', b'"', b'csystem\n', b'cos\nsystem\n(S"true"\ntR.', b"'|O'",
         b'(9223372036854775807,)')


def mutate(content, rng):
    """bytes -> changed bytes: bits, numbers, texts, pieces that are cut, moved or repeated."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place, kind = rng.randrange(len(data) + 1), rng.randrange(8)
        length = rng.choice((1, 2, 4, 8, 24, rng.randrange(len(data) + 1)))
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place:place + length] = bytes(rng.randrange(256) for _ in range(length)) if length < 64 else b''
        elif kind == 2:
            place -= place % 4 * rng.randrange(2)
            form = rng.choice(('<I', '>I', '<Q', '<H', '>H', 'B'))
            number = struct.pack(form, rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form)))
            data[place:place + len(number)] = number
        elif kind == 3:
            del data[place:place + length]
        elif kind == 4:
            data[place:place] = data[rng.randrange(len(data) + 1):][:length]
        elif kind == 5:
            data[place:place + rng.choice((0, length))] = rng.choice(TEXTS)
        elif kind == 6:
            del data[place:]
        else:
            data += data[place:place + length]
    return bytes(data)


class Sandbox:
    """A folder with the valid files; each mutant has `in` and `out`, and nothing else may change."""

    def __init__(self, target, folder):
        self.target, self.folder, self.passed = target, pathlib.Path(folder), 0
        (self.folder / 'outside').mkdir()
        target.make(self.folder / 'valid')

    def try_mutant(self, rng):
        """What happens to one mutant -> None, or text of the finding."""
        for name in ('in', 'out'):
            shutil.rmtree(str(self.folder / name), ignore_errors=True)
        shutil.copytree(str(self.folder / 'valid'), str(self.folder / 'in'))
        (self.folder / 'out').mkdir()
        if self.target.mutates:
            paths = sorted(path for path in (self.folder / 'in').glob(self.target.mutates) if path.is_file())
            for path in rng.sample(paths, rng.choice((1, 1, 1, len(paths)))):
                path.write_bytes(mutate(path.read_bytes(), rng))
        finding = self._run(rng)
        strange = {path.name for path in self.folder.iterdir()} - {'in', 'out', 'valid', 'outside'}
        strange.update(path.name for path in (self.folder / 'outside').iterdir())
        return 'wrote outside its folder: %s' % strange if strange else finding

    def _run(self, rng):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                self.target.run(self.folder, rng)
            self.passed += 1
        except UserError:
            pass
        except SystemExit as ended:
            return None if ended.code == 2 else 'exit code %r' % ended.code
        except BaseException:
            return traceback.format_exc()
        return said.getvalue() if 'Traceback' in said.getvalue() else None


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def child(target, name, folder, seeds, shared, findings):
    """Try the mutants of some seeds; says in `shared` which one it is at."""
    sandbox, before = Sandbox(target, folder), None
    os.chdir(str(folder))
    for number, seed in enumerate(seeds):
        shared[:8] = struct.pack('<q', number)
        finding = sandbox.try_mutant(random.Random('%s %d' % (name, seed)))
        size = sum(path.stat().st_size for path in sandbox.folder.glob('in/**/*'))
        peak = peak_memory()
        if before is not None and peak > before + 2 * size + MEMORY:
            finding, before = 'took %d MB' % ((peak - before) >> 20), peak
        before = before or peak
        if finding:
            os.write(findings, b'%s seed %d: %s\n' % (name.encode(), seed, finding[-3000:].encode('utf-8', 'replace')))
    shared[:8] = struct.pack('<q', len(seeds))


def run_batch(name, seeds, findings):
    """Fork a child for some seeds -> seeds that are left because it died or hung, and why: ([], None) if it did not."""
    shared = mmap.mmap(-1, 8)
    shared[:8] = struct.pack('<q', 0)
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)          # of threads, which no child needs
            process = os.fork()
        if process == 0:
            try:
                child(TARGETS[name], name, folder, seeds, shared, findings)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        reason = wait(process, shared)
    at, = struct.unpack('<q', shared[:8])
    if at == len(seeds):
        return [], None
    return seeds[at + 1:], '%s seed %d: %s' % (name, seeds[at], reason)


def wait(process, shared):
    """Wait for a child, and end one that stays at one mutant for too long -> text of how it ended."""
    at, since = shared[:8], time.monotonic()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return 'the process died (status %d)' % status
        if shared[:8] != at:
            at, since = shared[:8], time.monotonic()
        if time.monotonic() - since > PATIENCE:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return 'hangs'
        time.sleep(0.01)


def fuzz(name, first_seed, count):
    """Findings, a list of texts, of `count` mutants of a target."""
    seeds, found = list(range(first_seed, first_seed + count)), []
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryFile() as stream:
            while seeds:
                left, reason = run_batch(name, seeds[:BATCH], stream.fileno())
                seeds = left + seeds[BATCH:]
                found += [reason] if reason else []
            stream.seek(0)
            text = stream.read().decode('utf-8')
    finally:
        logging.disable(logging.NOTSET)
    return found + [part for part in text.split('\n%s seed ' % name) if part.strip()]


def main():
    parser = argparse.ArgumentParser(prog='fuzz', description=__doc__.splitlines()[0])
    parser.add_argument('target', choices=sorted(TARGETS))
    parser.add_argument('--mutants', type=int, default=1000)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    begin = time.monotonic()
    found = fuzz(args.target, args.seed, args.mutants)
    print('\n'.join(found))
    print('%s: %d mutants, %.0f s, %d findings' % (args.target, args.mutants, time.monotonic() - begin, len(found)))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
