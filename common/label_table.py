"""Which labels belong to which set, where several sets are read as one.

The classes of each set stay apart: its labels begin where those of the set before it end, so that the label of an
image is first_label + class, and the number of classes is that of all sets together.
"""
import collections
import os

from common.errors import UsageError
from common.files import replacing

# folder; label of class 0; classes; images, int each
SetLabels = collections.namedtuple('SetLabels', 'folder first_label num_classes num_images')


def folders(dataset_path):
    """List of the folders of a setting that is one folder or a list of them."""
    return [dataset_path] if isinstance(dataset_path, str) else list(dataset_path)


def write_label_table(path, table):
    """Write a list of SetLabels as text with tabs."""
    rows = [('set', 'first label', 'classes', 'images')] + [tuple(map(str, labels)) for labels in table]
    with replacing(path) as partial:
        partial.write_text(''.join('%s\n' % '\t'.join(row) for row in rows), encoding='utf-8')


def refuse_repeated(folders, name):
    """UsageError if two names mean one folder, also through links; name: the flag or setting that gave them."""
    seen = set()
    for folder in map(os.path.realpath, folders):
        if folder in seen:
            raise UsageError('%s names %s twice' % (name, folder))
        seen.add(folder)
