"""Shuffle a face set once, so that training can read it front to back (is_shuffled_rec=True).

The source is read front to back, scattered over temporary files, and written in a uniformly random order: no random
reads, and no more memory than --memory plus 300 MB. See docs/data.md.
"""
import contextlib
import filecmp
import glob
import logging
import os
import shutil
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

from common.command import parse_size, require_range, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.face_record import FLOAT32, SPLIT, SPLIT24, Property, physical_memory, write_property
from common.files import replacing
from common.label_table import SetLabels, refuse_repeated, write_label_table
from common.progress import Progress
from common.record_source import DROP, REFUSE, Source, warn_about_index
from common.sequential_set import RECORDS, SHUFFLED
from common.shuffle import Shuffler, num_buckets
from common.shuffled_writer import Fingerprint, fingerprint_of, label_format, write_parts
from common.temporary_folder import locked, remove_leftovers

log = logging.getLogger('shardface')

MIN_MEMORY = 16
NAMED = 20                           # dropped records that are named in the log; the file dropped.tsv names all


def make_parser():
    parser = tool_parser('rec2shufrec', __doc__, 'rec2shufrec --input ms1m --output ms1m-shuffled --copy-vers --verify')
    parser.add_argument('--input', nargs='+', required=True, metavar='DIR',
                        help='folder with train.rec; several are merged, the classes of each stay apart')
    parser.add_argument('--output', required=True, metavar='DIR', help='folder to make; must not hold anything yet')
    parser.add_argument('--copy-vers', action='store_true', help='copy the verification sets (*.bin) too')
    parser.add_argument('--seed', type=int, default=0, metavar='N',
                        help='same seed, same bytes; other seed, other order (default %(default)s)')
    parser.add_argument('--memory', type=int, default=2048, metavar='MB', help='memory to use (default %(default)s)')
    parser.add_argument('--tmp', metavar='DIR', help='where temporary files go (default: beside the output)')
    parser.add_argument('--parts', type=int, default=1, metavar='N', help='write N files of equal count')
    parser.add_argument('--verify', action='store_true',
                        help='read the output again and compare labels and image bytes with the source')
    parser.add_argument('--check-images', choices=(DROP, REFUSE), metavar='drop|refuse',
                        help='decode every image; drop or refuse those that are corrupt (default: not decoded)')
    parser.add_argument('--resize', default='none', metavar='none|HxW',
                        help='bring images of another size to this one (default: image bytes stay as they are)')
    parser.add_argument('--same-labels', action='store_true',
                        help='several inputs: equal labels are the same person in all of them')
    return parser


def check_arguments(args):
    """UsageError for what can be seen without opening a file."""
    require_range(args.seed, '--seed', 0, (1 << 63) - 1)
    require_range(args.memory, '--memory', MIN_MEMORY, 1 << 30)
    require_range(args.parts, '--parts', 1, 99999)
    output, places = os.path.realpath(args.output), [os.path.realpath(given) for given in args.input]
    places = [os.path.dirname(place) if place.endswith('.rec') else place for place in places]
    refuse_repeated(places, '--input')
    for place in places:
        for flag, folder in ('--output', output), ('--tmp', os.path.realpath(args.tmp or args.output)):
            if inside(folder, place) or (flag == '--output' and inside(place, folder)):
                raise UsageError('%s %s and --input %s must not be the same folder, nor one inside the other'
                                 % (flag, folder, place))
    if os.path.lexists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise UserError('%s exists already%s: remove it or choose another --output'
                        % (output, ' and is not empty' if os.path.isdir(output) else ''))


def inside(path, folder):
    return os.path.commonpath([path, folder]) == folder


class Conversion:
    """One run, once its arguments are known to make sense."""

    def __init__(self, args, output):
        """output: real path of a folder that is not there, or empty."""
        self.args, self.output = args, output
        self.resize = parse_size(args.resize)
        self.sources = [Source(path) for path in args.input]
        self.total = sum(source.size for source in self.sources)
        self.memory = min(args.memory << 20, physical_memory() * 3 // 4 or args.memory << 20)
        self.size = self.resize or self._common_size()
        self.bins = self._find_bins() if args.copy_vers else {}
        self.fingerprint = Fingerprint()
        self.first_labels = []

    def run(self):
        """UserError if anything is wrong; then nothing is left of the output."""
        os.makedirs(os.path.dirname(self.output), exist_ok=True)
        name = os.path.basename(self.output)
        for leftover in remove_leftovers(os.path.join(glob.escape(os.path.dirname(self.output)),
                                                      '.%s.*.partial' % glob.escape(name))):
            log.info('removed %s, which an interrupted conversion left', leftover)
        with replacing(self.output) as partial, locked(str(partial)), self._buckets_folder(str(partial)) as buckets:
            self._check_space(os.path.dirname(self.output), buckets)
            self._convert(str(partial), buckets)
        log.info('%s is ready: train with dataset_path=%s and is_shuffled_rec=True', self.output, self.output)

    @contextlib.contextmanager
    def _buckets_folder(self, partial):
        """Folder for temporary files, which goes at the end."""
        if self.args.tmp:
            name = os.path.join(os.path.realpath(self.args.tmp), '.rec2shufrec-%s' % os.path.basename(self.output))
            remove_leftovers(glob.escape(name))
        else:
            name = os.path.join(partial, 'buckets')
        with locked(name):
            try:
                yield name
            finally:
                shutil.rmtree(name, ignore_errors=True)

    def _convert(self, folder, buckets):
        with Shuffler(buckets, self.total, self.memory, self.args.seed) as shuffler:
            count, form = self._shuffle(shuffler, folder)
        shutil.rmtree(buckets)
        if self.args.verify:
            self._verify(folder, form)
        self._write_texts(folder, count, form)
        for name, path in self.bins.items():
            shutil.copyfile(path, os.path.join(folder, name))
        self._report(count)

    def _shuffle(self, shuffler, folder):
        """Read all and write all; returns the number of records and the form of their labels."""
        self._scatter(shuffler)
        count = shuffler.num_records
        if count < self.args.parts:
            raise UserError('%s: %s' % (', '.join(source.paths[0] for source in self.sources),
                                        'no images in it' if count == 0 else '%d images cannot fill --parts %d'
                                        % (count, self.args.parts)))
        form = label_format(self.num_classes)
        with Progress('writing', self.total) as progress:
            write_parts(folder, shuffler.batches(), count, self.args.parts, form, progress.advance)
        return count, form

    def _scatter(self, shuffler):
        """Read all inputs once."""
        first = 0
        decoding = self.args.check_images or self.resize
        with Progress('reading', self.total) as progress, contextlib.ExitStack() as stack:
            prepare = stack.enter_context(_preparation(self.resize)) if decoding else None
            for source in self.sources:
                self.first_labels.append(first)
                for block, size in source.batches(self.args.check_images, prepare):
                    block.entries['number'] += first
                    if self.args.verify:
                        self.fingerprint.add(block.entries['number'].tolist(), block.images())
                    shuffler.add(block)
                    progress.advance(len(block), size)
                first += 0 if self.args.same_labels else source.num_classes
                _warn_about_rounding(source)
                warn_about_index(source)

    @property
    def num_classes(self):
        return max(first + source.num_classes for first, source in zip(self.first_labels, self.sources))

    def _verify(self, folder, form):
        with Progress('verifying', self.total) as progress:
            found = fingerprint_of(folder, self.args.parts, form, progress.advance)
        if found != self.fingerprint:
            raise UserError('the output differs from the source (%d records instead of %d, or other bytes): disk or '
                            'memory is faulty; nothing is kept' % (found.count, self.fingerprint.count))
        log.info('verified: labels and image bytes of all %d records are those of the source', found.count)

    def _write_texts(self, folder, count, form):
        extra = {SHUFFLED: '1', RECORDS: str(count), 'seed': str(self.args.seed)}
        extra.update({'label_format': form} if form != FLOAT32 else {})
        write_property(folder, Property(self.num_classes, *self.size, extra=extra))
        if len(self.sources) > 1:
            write_label_table(os.path.join(folder, 'labels.tsv'), [
                SetLabels(source.folder, first, source.num_classes, source.num_images)
                for first, source in zip(self.first_labels, self.sources)])
        dropped = [entry for source in self.sources for entry in source.dropped]
        if dropped:
            with replacing(os.path.join(folder, 'dropped.tsv')) as partial:
                partial.write_text(''.join('%s\t%d\t%s\n' % entry for entry in dropped), encoding='utf-8')

    def _report(self, count):
        for first, source in zip(self.first_labels, self.sources):
            labels = source.labels.values()
            log.info('%s: %d images of %d identities, labels %d to %d; %d metadata records left out',
                     source.folder, source.num_images, len(labels), labels[0] if len(labels) else -1,
                     source.labels.largest, source.num_metadata)
            if len(self.sources) > 1:
                log.info('%s: its label 0 is label %d of the output', source.folder, first)
            if len(labels) < source.num_classes:
                log.warning('%s: %d of %d classes have no image', source.folder, source.num_classes - len(labels),
                            source.num_classes)
            if source.dropped:
                log.warning('%s: %d records dropped, see dropped.tsv', source.folder, len(source.dropped))
            for entry in source.dropped[:NAMED]:
                log.warning('dropped: %s, record at offset %d: %s', *entry)
        log.info('%d records, %d classes, %dx%d, %s', count, self.num_classes, self.size[0], self.size[1],
                 'one file' if self.args.parts == 1 else '%d files' % self.args.parts)

    def _common_size(self):
        """(h, w) of the images of all inputs."""
        sizes = {source.folder: source.image_size() for source in self.sources}
        known = {size for size in sizes.values() if size}
        if len(known) > 1:
            raise UserError('the inputs hold images of different sizes (%s): bring them to one with --resize HxW'
                            % ', '.join('%s: %dx%d' % ((folder,) + size) for folder, size in sizes.items() if size))
        if not known:
            raise UserError('%s: no image can be decoded, so their size is unknown' % ', '.join(sizes))
        return known.pop()

    def _find_bins(self):
        """{name: path} of the verification sets of all inputs."""
        found = {}
        for source in self.sources:
            for path in sorted(glob.glob(os.path.join(glob.escape(source.folder), '*.bin'))):
                before = found.setdefault(os.path.basename(path), path)
                if not filecmp.cmp(before, path, shallow=False):
                    raise UserError('%s and %s differ, but would get the same name: rename one' % (before, path))
        return found

    def _check_space(self, output_parent, buckets):
        """State what space is needed; UserError if it is not there."""
        count = num_buckets(self.total, self.memory)
        out = self.total + sum(map(os.path.getsize, self.bins.values())) + (1 << 20)
        scattered = 0 if count == 1 else int(self.total * 1.02)
        if scattered and os.stat(output_parent).st_dev == os.stat(buckets).st_dev:
            needs = [(output_parent, out + scattered // count + (1 << 20))]    # a bucket goes once it is written
        else:
            needs = [(output_parent, out)] + ([(os.path.dirname(buckets), scattered)] if scattered else [])
        for folder, need in needs:
            free = shutil.disk_usage(folder).free
            log.info('%s: %.1f MB needed, %.1f MB free; %s', folder, need / 1e6, free / 1e6,
                     'one pass in memory' if count == 1 else '%d temporary files' % count)
            if need > free:
                raise UserError('%s: %.1f MB are needed, %.1f MB are free: make room, or choose another --output or '
                                '--tmp' % (folder, need / 1e6, free / 1e6))


def _preparation(size):
    from common.preparation import Preparation  # OpenCV is not needed, nor imported, by most runs
    return Preparation(size)


def _warn_about_rounding(source):
    if source.label_format != SPLIT24 and source.labels.largest >= SPLIT:
        log.warning('%s: label %d is stored as a float32, which holds class ids exactly up to 2**24: neighbouring '
                    'classes may have been mixed when the set was built', source.folder, source.labels.largest)


def run(args):
    """UserError if anything is wrong; then nothing is left of the output."""
    check_arguments(args)
    try:
        Conversion(args, os.path.realpath(args.output)).run()
    except OSError as error:
        raise UserError('%s: %s' % (error.filename or args.output, error.strerror)) from None


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
