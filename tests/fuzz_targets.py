"""What is fuzzed: for each kind of file a valid small example, and the readers of the product that get its mutants.

A target makes its files once in the folder `valid`; of those that `mutates` matches, one or more are changed in each
mutant's copy, in the folder `in`. run(folder, rng) may raise UserError, or SystemExit of the argument parser.
"""
import json
import pathlib
import pickle
import shutil
import types

import numpy as np

import train_parall
from common import bin_builder, ranking, rec2image, rec2shufrec, rec_builder, rec_inspect, template_evaluation
from common.class_rows import ClassRows
from common.errors import UserError
from common.images import CorruptImage, decode_rgb
from common.mxnet_loader import mx
from common.saved_model import Embedder, load_model
from common.verification import embed_pairs, load_bin, write_bin
from recognition.class_map import read_class_map
from recognition.image_iter import get_face_image_iter
from recognition.pretrained import load_pretrained
from recognition.pretrained_head import find_centers
from recognition.settings import SETTINGS, complete, defaults
from recognition.state_files import MANIFEST, SEAL, StateWriter, seal
from recognition.state_folder import StateFolder
from tests.make_sets import encode, identity_set, jpeg, picture

SIZE = (16, 16)
JUNK = ('', '-1', '0', '1', '1e999', 'nan', 'None', 'True', '[]', '[1,2', "{'a': 1}", '../outside/x', '/', '%s%n', '\0',
        'a' * 5000, '9' * 400, '1,2,3', 'cpu:99999999999', 'gpu:', '\udcff', '=', '--lr', '0x10', '1_0', '１', '-0.0')


def tool(main, *argv):
    """Run the main() of a tool. Its only ways to fail are exit codes 1 and 2; UserError says that it did."""
    code = main([str(argument) for argument in argv])
    if code not in (0, 1, 2):
        raise AssertionError('exit code %r' % (code,))
    if code:
        raise UserError('exit code %d' % code)


class Records:
    """train.rec, train.idx and property, indexed."""

    def __init__(self, mutates):
        self.mutates = mutates

    def make(self, folder):
        identity_set(folder, 3, 3, SIZE)

    def run(self, folder, rng):
        use = rng.choice((self.inspect, self.convert, self.export, self.read))
        use(folder / 'in', folder / 'out')

    def inspect(self, source, out):
        tool(rec_inspect.main, '--input', source, '--walk', '--decode', '--threads', 1)

    def convert(self, source, out):
        tool(rec2shufrec.main, '--input', source, '--output', out / 'shuffled', '--check-images', 'drop')

    def export(self, source, out):
        tool(rec2image.main, '--input', source, '--output', out / 'photos')

    def read(self, source, out, **options):
        options = types.SimpleNamespace(**dict(defaults(), **dict(
            batch_size=4, data_threads=1, rank=0, world_size=1, num_classes=3, image_shape=[*SIZE, 3],
            dataset_path=str(source), **options)))
        images = get_face_image_iter(options, (3, *SIZE), [str(source / 'train.rec')])
        try:
            for _ in images:
                pass
        finally:
            images.close()


class Shuffled(Records):
    """The shuffled form of the same set, read front to back."""

    def make(self, folder):
        identity_set(folder / 'indexed', 3, 3, SIZE)
        tool(rec2shufrec.main, '--input', folder / 'indexed', '--output', folder / 'shuffled')
        for path in (folder / 'shuffled').iterdir():
            path.rename(folder / path.name)
        shutil.rmtree(str(folder / 'indexed'))
        (folder / 'shuffled').rmdir()

    def read(self, source, out):
        super().read(source, out, is_shuffled_rec=True)


class Images:
    """JPEG, PNG, BMP and WebP."""

    mutates = '*'

    def make(self, folder):
        folder.mkdir()
        for ending in ('.jpg', '.png', '.bmp', '.webp'):
            (folder / ('image' + ending)).write_bytes(encode(picture(1, SIZE), ending))

    def run(self, folder, rng):
        for path in sorted((folder / 'in').iterdir()):
            try:
                decode_rgb(path.read_bytes(), SIZE)
            except CorruptImage:
                pass


class Pairs:
    """A verification set; some mutants are pickles that try to call something."""

    mutates = '*.bin'

    def make(self, folder):
        folder.mkdir()
        images = [jpeg(number, SIZE) for number in range(4)]
        write_bin(str(folder / 'val.bin'), images, [True, False])
        old = [np.frombuffer(image, np.uint8) for image in images], np.array([1, 0], bool)
        (folder / 'old.bin').write_bytes(pickle.dumps(old, protocol=2))
        (folder / 'gadget.bin').write_bytes(pickle.dumps((images, [Gadget(str(folder.parent / 'outside/owned'))])))

    def run(self, folder, rng):
        vset = load_bin(str(folder / 'in' / rng.choice(('val.bin', 'old.bin', 'gadget.bin'))))
        embed_pairs(vset, lambda images: images.reshape(len(images), -1)[:, :4], 2, SIZE)


class Gadget:
    """Unpickled by pickle itself it would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path(self.path).mkdir, ()


class Parameters:
    """PREFIX-symbol.json and PREFIX-0001.params."""

    mutates = 'model-*'

    def make(self, folder):
        folder.mkdir()
        data = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='fc1')
        (folder / 'model-symbol.json').write_text(data.tojson())
        weights = {'arg:fc1_weight': mx.nd.ones((4, 3 * 4 * 4)), 'arg:fc1_bias': mx.nd.ones(4)}
        mx.nd.save(str(folder / 'model-0001.params'), weights)

    def run(self, folder, rng):
        if rng.random() < 0.5:
            load_pretrained(str(folder / 'in' / 'model'), 1)
        else:
            Embedder(load_model(str(folder / 'in' / 'model'), 1), 2, (4, 4))(np.zeros((2, 3, 4, 4), np.uint8))


class State:
    """A training state. Half of the mutants get a new seal, as someone who wants to deceive would do."""

    mutates = 'step-*/**/*'

    def make(self, folder):
        path = folder / 'step-00000010'
        path.mkdir(parents=True)
        rows, writer = np.arange(60, dtype=np.float32).reshape(15, 4), StateWriter(path)
        writer.arrays('backbone.npz', [('weight/a', rows), ('statistics/0/b', rows)])
        with writer.create('head/centers-000000000-000000015.npy') as stream:
            np.lib.format.write_array(stream, rows, version=(1, 0), allow_pickle=False)
        writer.finish({'num_update': 10, 'config': {}}, writer.files)

    def run(self, folder, rng):
        path = folder / 'in' / 'step-00000010'
        if rng.random() < 0.5:
            self.seal_anew(path)
        use = rng.choice((self.find, self.pretrained, self.centers))
        use(path)

    def seal_anew(self, path):
        """Bring hashes in line with the files, as far as they can be understood."""
        try:
            manifest = json.loads((path / MANIFEST).read_bytes().decode())
            writer = StateWriter(path)
            for name in manifest['files']:
                content = (path / name).read_bytes()
                with writer.create(name) as stream:
                    stream.write(content)
            text = json.dumps(dict(manifest, files=writer.files)).encode()
            (path / MANIFEST).write_bytes(text)
        except (ValueError, LookupError, TypeError, AttributeError, OSError):
            text = (path / MANIFEST).read_bytes()
        (path / SEAL).write_bytes(seal(text))

    def find(self, path):
        StateFolder(path.parent).find(str(path))
        StateFolder(path.parent).find('auto')

    def pretrained(self, path):
        load_pretrained(str(path), 0)

    def centers(self, path):
        rows = ClassRows(find_centers(str(path), 0), 'centers')
        rows.take(np.arange(rows.num_classes)[:100])


class Head(State):
    """The folder of class centers of a checkpoint."""

    mutates = 'model-0001.head/*'

    def make(self, folder):
        (folder / 'model-0001.head').mkdir(parents=True)
        for start in (0, 10):
            np.save(str(folder / 'model-0001.head' / ('centers-%09d-%09d.npy' % (start, start + 10))),
                    np.ones((10, 4), np.float32))

    def run(self, folder, rng):
        self.centers(folder / 'in' / 'model-0001.head')


class ClassMaps:
    """Lines OLD NEW."""

    mutates = '*'

    def make(self, folder):
        folder.mkdir()
        (folder / 'map.txt').write_text('# old new\n0 1\n5,2\n\n7\t3 # seven\n')

    def run(self, folder, rng):
        read_class_map(str(folder / 'in' / 'map.txt'), 10, 10)


class Lists:
    """List files of rec_builder and bin_builder; some name files elsewhere."""

    mutates = '*.tsv'

    def make(self, folder):
        folder.mkdir()
        for number in range(3):
            (folder / ('%d.jpg' % number)).write_bytes(jpeg(number, SIZE))
        (folder / 'photos.tsv').write_text('0.jpg\ta\n1.jpg\t../../outside/b\n2.jpg\t/outside\n./0.jpg\tc\n')
        (folder / 'pairs.tsv').write_text('0.jpg\t1.jpg\t1\n./1.jpg\t../in/2.jpg\t0\n')

    def run(self, folder, rng):
        if rng.random() < 0.5:
            tool(rec_builder.main, '--input', folder / 'in' / 'photos.tsv', '--output', folder / 'out' / 'set',
                 '--threads', 1)
        else:
            tool(bin_builder.main, '--input', folder / 'in' / 'pairs.tsv', '--output', folder / 'out' / 'val.bin',
                 '--threads', 1)


class Protocols:
    """Embeddings with their labels and names, noise lists, and the files of a template protocol."""

    mutates = '*'

    def make(self, folder):
        folder.mkdir()
        np.save(str(folder / 'embeddings.npy'), np.random.RandomState(0).randn(6, 4).astype(np.float32))
        np.save(str(folder / 'labels.npy'), np.arange(6) // 2)
        points = ' '.join(map(str, range(10)))
        for name, line in (('names.txt', '{0}.jpg'), ('x_face_tid_mid.txt', '{0}.jpg {1} 7'),
                           ('x_name_5pts_score.txt', '{0}.jpg ' + points + ' 0.9'),
                           ('x_template_pair_label.txt', '0 {1} 1'), ('x_1N_gallery_G1.csv', '{1},{1},x'),
                           ('x_1N_gallery_G2.csv', '2,2,x'), ('x_1N_probe_mixed.csv', '{1},{1},x')):
            text = ''.join(line.format(row, row // 2) + '\n' for row in range(6))
            (folder / name).write_text('T,S,F\n' + text if name.endswith('.csv') else text)
        (folder / 'noise.txt').write_text('# left out\n1\t5.jpg\n')

    def run(self, folder, rng):
        use = rng.choice((self.templates, self.rank))
        use(folder / 'in', folder / 'out')

    def templates(self, source, out):
        tool(template_evaluation.main, '--meta', source, '--embeddings', source, '--use-detector-score', '--json',
             out / 'result.json')

    def rank(self, source, out):
        tool(ranking.main, '--probes', source, '--distractors', source, '--distractor-noise', source / 'noise.txt',
             '--json', out / 'result.json')


class Settings:
    """Values of config.py, of any type."""

    mutates = ''
    values = (None, True, -1, 0, 1, 2**70, 1e308, float('nan'), float('inf'), -0.0, b'x', [], [[]], [None], {}, (1, 2),
              object(), [10**20], {'a': [1]}, np.float32(3), np.int64(-5), np.arange(3), np.nan, print) + JUNK

    def make(self, folder):
        folder.mkdir()

    def run(self, folder, rng):
        names = rng.sample(sorted(SETTINGS), rng.randint(1, 4))
        complete(dict(defaults(), **{name: rng.choice(self.values) for name in names}))


class CommandLines(Settings):
    """Flags and their values, up to where training would begin."""

    def run(self, folder, rng):
        parser = train_parall.make_parser()
        flags = ['--' + name.replace('_', '-') for name in ' '.join(train_parall.GROUPS.values()).split()]
        flags += ['--plan', '--quiet', '--distributed', '--no-plan-check', '--tensorboard']
        argv = []
        for _ in range(rng.randint(1, 5)):
            argv.append(rng.choice(flags + ['--set'] * 20))
            text = rng.choice(JUNK + tuple(map(str, self.values[:20])))
            argv.append('%s=%s' % (rng.choice(sorted(SETTINGS)), text) if argv[-1] == '--set' else text)
        if rng.random() < 0.3:
            argv.append(rng.choice(JUNK))
        train_parall.build_config(parser.parse_args(argv))


TARGETS = {
    'rec': Records('*.rec'), 'idx': Records('*.idx'), 'property': Records('property'), 'shuffled': Shuffled('*'),
    'image': Images(), 'bin': Pairs(), 'params': Parameters(), 'state': State(), 'head': Head(),
    'class_map': ClassMaps(), 'list': Lists(), 'protocol': Protocols(), 'settings': Settings(),
    'command': CommandLines(),
}
