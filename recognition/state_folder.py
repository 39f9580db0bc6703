"""The training states of a run, PREFIX-state/step-00001234: which there are, which are kept, which is the newest."""
import glob
import logging
import os
import pathlib
import re
import shutil

from common.errors import UserError
from common.files import discard
from common.temporary_folder import remove_leftovers
from recognition.agreement import replacing_together
from recognition.collective import LocalCollective
from recognition.state_files import MANIFEST, DamagedState, check_files, read_manifest

log = logging.getLogger('shardface')

AUTO = 'auto'
MEGABYTE = 1e6
_NAME = re.compile(r'step-(\d{8,})')


class StateFolder:
    """Every state is written under another name, and bears its own when it is complete."""

    def __init__(self, path, keep=2, collective=None):
        """keep: how many states of a run stay. collective: None for one process."""
        self.path, self.keep, self.collective = pathlib.Path(path), keep, collective or LocalCollective()
        self._newest_own = None                      # step from which on states are this run's; None before the first

    def states(self):
        """{step: path}, the newest first."""
        found = {}
        for path in self.path.glob('step-*') if self.path.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match.group(1))] = path
        return dict(sorted(found.items(), reverse=True))

    def find(self, resume):
        """What to resume from -> (path, manifest), its files checked, or None for a fresh start.

        resume: '' for none, 'auto' for the newest intact state of this folder, or the path of a state or of a folder
        of states. UserError if there are states but none is intact, or if a path is not or does not hold one.
        """
        if not resume:
            return None
        if resume != AUTO:
            return find_at(pathlib.Path(os.path.abspath(os.path.expanduser(resume))))
        found = self.newest_intact()
        if found is None:
            log.info('--resume auto: no training state in %s, so this is a fresh start', self.path)
        return found

    def newest_intact(self):
        """(path, manifest), or None if there is no state at all. UserError if all are damaged."""
        damaged = []
        for path in self.states().values():
            try:
                found = checked_state(path)
            except DamagedState as error:
                log.warning('training state %s cannot be used: %s', path, error)
                damaged.append(path)
                continue
            if damaged:
                log.warning('resuming from the training state before: %s', path)
            return found
        if damaged:
            raise UserError('no training state in %s is intact (%d there): remove the folder to begin anew'
                            % (self.path, len(damaged)))
        return None

    def begin(self, found=None):
        """Say which state, of find(), this run goes on from; None for a fresh start."""
        own = found is not None and found[0].parent == self.path.absolute()
        self._newest_own = found[1]['num_update'] if own else -1
        others = [path for step, path in self.states().items() if step > self._newest_own]
        if others and found is None and self.collective.rank == 0:
            log.warning('%s holds a training state of an earlier run: --resume auto would go on with it; it is moved '
                        'aside at the first save', others[0])

    def write(self, step, write, size):
        """Write a state: write(folder) fills the folder. Then remove old ones. size: bytes, about. UserError."""
        path = self.path / ('step-%08d' % step)
        try:
            if self.collective.rank == 0:
                self._make_room(size)
            with replacing_together(path, self.collective) as partial:
                write(partial)
            self._newest_own = step
            if self.collective.rank == 0:
                for old in list(self.states().values())[self.keep:]:
                    remove(old)
        except OSError as error:
            raise UserError('cannot write %s: %s' % (path, error.strerror or error)) from None
        return path

    def _make_room(self, size):
        self.path.mkdir(exist_ok=True)
        remove_leftovers(os.path.join(glob.escape(str(self.path)), '.*.partial'))
        check_space(self.path, size)
        self._move_aside()

    def _move_aside(self):
        """States beyond the one this run began from belong to another run, or are damaged: they are kept elsewhere."""
        others = [path for step, path in self.states().items() if step > self._newest_own]
        if not others:
            return
        number = 1
        while (self.path / ('aside-%d' % number)).exists():
            number += 1
        aside = self.path / ('aside-%d' % number)
        aside.mkdir()
        for path in others:
            os.rename(str(path), str(aside / path.name))
        log.warning('moved %d training states that this run does not go on from to %s', len(others), aside)


def find_at(path):
    """StateFolder.find for the path of a state or of a folder of states."""
    if not path.is_dir():
        raise UserError('--resume %s: there is no such folder' % path)
    if _NAME.fullmatch(path.name) or (path / MANIFEST).exists():
        return checked_state(path)
    found = StateFolder(path).newest_intact()
    if found is None:
        raise UserError('--resume %s: no training state in it; they are folders named step-00000000' % path)
    return found


def checked_state(path):
    """(path, manifest) of a state whose files are all as they were written. DamagedState."""
    manifest = read_manifest(path)
    check_files(path, manifest)
    return path, manifest


def remove(path):
    """Remove a state; if that is interrupted, what is left does not bear its name."""
    rest = path.with_name('.%s.%d.partial' % (path.name, os.getpid()))
    os.rename(str(path), str(rest))
    discard(rest)


def check_space(folder, size):
    """UserError if the disk cannot hold so many bytes more."""
    free = shutil.disk_usage(str(folder)).free
    if free < size:
        raise UserError('cannot write a training state to %s: it needs %.1f MB, the disk has %.1f MB left; earlier '
                        'states are as they were' % (folder, size / MEGABYTE, free / MEGABYTE))
