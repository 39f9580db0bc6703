"""Finding the training set, or several, that a configuration names, and what their files say. Needs no MXNet."""
import logging
import os

from common.any_set import is_shuffled
from common.errors import UsageError, UserError
from common.face_record import read_property
from common.label_table import folders, refuse_repeated
from common.sequential_set import find_parts

log = logging.getLogger('shardface')

DEMO = 'demo'


def find_dataset(cfg):
    """Fill in dataset_path (absolute; a list if there are several sets), num_classes and image_shape.

    The demo set is made on first use. num_classes stays None if nothing states it: the reader then counts.
    UserError lists missing files.
    """
    paths = absolute_folders(cfg.dataset_path)
    if not paths:
        raise UsageError('dataset %s has no dataset_path: give --dataset-path' % cfg.dataset)
    refuse_repeated(paths, 'dataset_path')
    cfg.dataset_path = paths if len(paths) > 1 else paths[0]
    if cfg.dataset == DEMO:
        from common.demo_set import ensure_demo_set
        ensure_demo_set(paths[0])
    refuse_mixture(paths)
    missing = [path for folder in paths for path in needed_files(folder, cfg.is_shuffled_rec)
               if not os.path.isfile(path)]
    if missing:
        raise UserError('missing: %s (relative paths start at the working directory %s)'
                        % (', '.join(missing), os.getcwd()))
    take_property(cfg, {folder: read_property(folder) for folder in paths})


def find_sizes(cfg):
    """Fill in num_classes and image_shape for a plan. No set need be there if num_classes is given."""
    if cfg.num_classes is None:
        paths = absolute_folders(cfg.dataset_path)
        take_property(cfg, {folder: read_property(folder) for folder in paths if os.path.isdir(folder)})
    if not cfg.num_classes:                # 0 is the sum over no sets
        raise UsageError('dataset %s does not say how many classes it has: give --set num_classes=...' % cfg.dataset)
    cfg.image_shape = cfg.image_shape or [112, 112, 3]


def absolute_folders(dataset_path):
    """List of the folders that dataset_path means. A text that is no folder itself may list some: 'A,B' or '[A,B]'.

    UsageError for an empty name among several.
    """
    given = folders(dataset_path)
    if len(given) == 1 and not os.path.isdir(os.path.expanduser(given[0])):
        body = given[0].strip()
        body = body[1:-1] if body[:1] + body[-1:] == '[]' else body
        given = [name.strip().strip('\'"') for name in body.split(',')]
    if len(given) > 1 and '' in given:
        raise UsageError('dataset_path = %s: one of the folders has no name' % (dataset_path,))
    return [os.path.abspath(os.path.expanduser(folder)) for folder in given if folder]


def needed_files(folder, is_shuffled_rec):
    path_imgrec, path_index = (os.path.join(folder, name) for name in ('train.rec', 'train.idx'))
    return find_parts(path_imgrec) if is_shuffled_rec else [path_imgrec, path_index]


def refuse_mixture(paths):
    """UserError if some of several sets were shuffled by rec2shufrec and others were not."""
    shuffled = [folder for folder in paths if is_shuffled(os.path.join(folder, 'train.rec'))]
    others = [folder for folder in paths if folder not in shuffled]
    indexed = [folder for folder in others if os.path.isfile(os.path.join(folder, 'train.idx'))]
    if shuffled and indexed:
        raise UserError('dataset_path: shuffled sets (%s) cannot be read together with indexed ones (%s): convert '
                        'those with common/rec2shufrec.py' % (', '.join(shuffled), ', '.join(indexed)))


def take_property(cfg, found):
    """Take num_classes and image_shape from the Property, or None, of each folder. UsageError if they contradict
    each other or the configuration, with both values.
    """
    stated = {folder: [one.height, one.width, 3] for folder, one in found.items() if one}
    for folder, shape in stated.items():
        first = next(iter(stated))
        if shape != stated[first]:
            raise UsageError('image_shape is %s in %s, but %s in %s: sets that are read together need images of one '
                             'size' % (stated[first], property_of(first), shape, property_of(folder)))
        take(cfg, 'image_shape', shape, property_of(folder))
    if len(stated) == len(found):
        counts = [one.num_classes for one in found.values()]
        sum_of = ' + '.join(map(str, counts)) + ' = ' if len(counts) > 1 else ''
        take(cfg, 'num_classes', sum(counts), ' + '.join(map(property_of, found)), sum_of)
    cfg.image_shape = cfg.image_shape or [112, 112, 3]
    for folder in sorted(set(found) - set(stated)):
        log.info('%s has no file property: images are taken as %dx%d', folder, *cfg.image_shape[:2])


def take(cfg, name, value, where, explained=''):
    """Fill in a setting that files state. UsageError if the configuration says something else."""
    if cfg[name] is not None and cfg[name] != value:
        raise UsageError('%s is %s in the configuration, but %s%s in %s' % (name, cfg[name], explained, value, where))
    cfg[name] = value


def property_of(folder):
    return os.path.join(folder, 'property')
