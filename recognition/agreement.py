"""What all processes of a job must have in common, and steps that all of them take or none."""
import contextlib
import hashlib
import logging
import os
import pathlib

from common.errors import UserError
from common.files import replacing
from common.temporary_folder import locked

log = logging.getLogger('shardface')

OWN_SETTINGS = {'dataset_path', 'devices', 'data_threads', 'models_root'}       # may differ between hosts
PROGRAM = 'common', 'recognition', 'symbols'
LOOKED_AT = 1 << 20                     # bytes at either end of each data file that its fingerprint covers


def all_or_none(collective, action, name):
    """Call action() in every process -> its result. If it fails in one, all of them raise: UserError names the rank."""
    result, problem = None, None
    try:
        result = action()
    except UserError as error:
        if collective.world_size == 1:
            raise
        problem = str(error)
    problems = collective.exchange(problem, name)
    for rank, text in enumerate(problems):
        if text is not None:
            raise UserError('rank %d: %s' % (rank, text))
    return result


def require_agreement(collective, facts):
    """facts: {name: anything that JSON holds}. UserError names the first rank that differs from rank 0, and how."""
    first, *others = collective.exchange(facts, 'facts')
    for rank, other in enumerate(others, start=1):
        names = [name for name in first if other.get(name) != first[name]]
        if names:
            shown = ['%s is %r there and %r in rank 0' % (name, other.get(name), first[name]) for name in names[:3]]
            raise UserError('rank %d does not fit the others: %s; start all processes with the same program, settings '
                            'and data' % (rank, ', '.join(shown)))


def facts_of(cfg, num_devices, train_iter, paths, targets, state):
    """What require_agreement compares. paths: files of the data set; state: of StateFolder.find."""
    facts = {name: value for name, value in cfg.items() if name not in OWN_SETTINGS}
    facts.update({'number of devices': num_devices, 'classes of the reader': train_iter.num_classes,
                  'images per epoch': train_iter.num_samples, 'program': program_hash(),
                  'data': data_fingerprint(paths), 'training state': state and state[0].name,
                  'verification sets': [[vset.name, len(vset.same)] for vset in targets]})
    return facts


def program_hash():
    """Hash of the source text of this program."""
    root = pathlib.Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for folder in PROGRAM for path in (root / folder).rglob('*.py')):
        digest.update(path.relative_to(root).as_posix().encode() + b'\0' + path.read_bytes())
    return digest.hexdigest()[:16]


def data_fingerprint(paths):
    """Hash of name, size, beginning and end of each file."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, 'rb') as stream:
            size = stream.seek(0, os.SEEK_END)
            digest.update(('%s %d' % (os.path.basename(path), size)).encode())
            for start in (0, max(0, size - LOOKED_AT)):
                stream.seek(start)
                digest.update(stream.read(LOOKED_AT))
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def replacing_together(path, collective):
    """As replacing, for a folder that every process writes files into: it takes the place of `path` when all of them
    have left the block. The temporary folder is there already. UserError if this host does not see it.
    """
    with contextlib.ExitStack() as stack:
        folder = None
        if collective.rank == 0:
            folder = stack.enter_context(replacing(path))
            stack.enter_context(locked(str(folder)))
        folder = pathlib.Path(collective.exchange(folder and str(folder), 'folder_begun')[0])
        if not folder.is_dir():
            raise UserError('rank %d does not see %s, which rank 0 has made: --models-root must name a folder that all '
                            'hosts share' % (collective.rank, folder))
        yield folder
        collective.barrier('folder_written')
    collective.barrier('folder_complete')
